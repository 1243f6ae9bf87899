"""The training command, on shards written by the pipeline's write stage."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from pipeline.stages.ground.glip.load import load_glip
from pipeline.stages.ground.glip.training import checkpoint, training_run
from pipeline.stages.ground.glip.training import training_run as run
from pipeline.stages.ground.glip.training.checkpoint import STATE, next_step
from pipeline.stages.ground.glip.training.run import main
from tests.pipeline.stages.ground.glip.tiny import TINY

ROOT = Path(__file__).parents[5]


def arguments(shards: Path, init: object, out: Path, steps: int = 4, **more: object) -> list[str]:
    settings = {"output": out, "init": init, "steps": steps, "batch_size": 2, "optim.warmup_steps": 1, "device": "cpu"}
    settings |= {"log.every": 1, "optim.average_every": 1, "save.interval_s": 0.0}
    return [str(shards), *(f"{key}={value}" for key, value in {**settings, **more}.items())]


def token_losses(out: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss/token"] for row in rows}


def test_one_command_fine_tunes_a_model_that_can_be_loaded(
    pipeline_output: Path, glip_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main(arguments(pipeline_output, glip_folder, out, flip=0.5, short_sides="[64,96]")) == 0
    assert sorted(token_losses(out)) == [1, 2, 3, 4]
    assert load_glip(out).config == TINY
    assert "steps: 4" in (out / "training.yaml").read_text()


def test_one_command_trains_a_new_model_and_builds_its_vocabulary(
    pipeline_output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(TINY, text=replace(TINY.text, vocab_size=256))
    monkeypatch.setattr(training_run, "CONFIGS", {"small": small})
    assert main(arguments(pipeline_output, "new:small", tmp_path / "out", steps=2)) == 0
    assert "dog" in (tmp_path / "out" / "vocab.txt").read_text().split()


@pytest.mark.slow
def test_a_killed_run_resumes_and_ends_with_the_bytes_of_an_uninterrupted_one(
    pipeline_output: Path, glip_folder: Path, tmp_path: Path
) -> None:
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    assert main(arguments(pipeline_output, glip_folder, uninterrupted, steps=8)) == 0
    command = arguments(pipeline_output, glip_folder, killed, steps=8)
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.stages.ground.glip.training.run", *command],
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},  # sums depend on it
        stderr=subprocess.DEVNULL,
    )
    while next_step(killed) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 3 <= next_step(killed) < 8
    assert main(command) == 0
    assert token_losses(killed) == token_losses(uninterrupted)
    for name in ("model.safetensors", STATE):
        assert (killed / name).read_bytes() == (uninterrupted / name).read_bytes()


def test_a_run_with_other_settings_is_not_overwritten(
    pipeline_output: Path, glip_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(pipeline_output, glip_folder, tmp_path, steps=2)) == 0
    saved = (tmp_path / "training.yaml").read_text()
    assert main(arguments(pipeline_output, glip_folder, tmp_path, steps=2, lr=0.5)) == 2
    assert "holds a run with other settings: optim.lr was 0.0001 and is now 0.5" in capsys.readouterr().err
    assert (tmp_path / "training.yaml").read_text() == saved
    (tmp_path / "training.yaml").write_text("")
    assert main(arguments(pipeline_output, glip_folder, tmp_path, steps=2)) == 2
    assert "training.yaml is damaged: it holds no settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"init": "new:glip_x"}, "is not a known model; choose one of new:glip_t_a"),
        ({"init": "/no/such/model"}, "/no/such/model does not exist"),
        ({"batch_size": 100}, "4 usable examples, fewer than batch_size=100"),
        ({"colour": "red"}, "colour"),
        ({"optim.warmup_steps": 9}, "give more than warmup_steps"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"lr": -1}, "optim.lr is -1"),
        ({"lr": "inf"}, "optim.lr is inf"),
        ({"lr": "nan"}, "optim.lr is nan"),
        ({"lr": 1e9}, "is not finite: token"),
        ({"optim.weight_decay": "nan"}, "optim.weight_decay is nan"),
        ({"optim.warmup_steps": -1}, "optim.warmup_steps is -1"),
        ({"vocabulary": "README.md"}, "is not a vocabulary"),
        ({"optim.average_every": 0}, "optim.average_every is 0"),
        ({"optim.ema": 2}, "optim.ema is 2"),
        ({"seed": -1}, "seed is -1; give 0 or more"),
        ({"flip": 3}, "flip is 3.0; give 0 to 1"),
        ({"short_sides": "[0]"}, "short_sides is [0]; give numbers above 0"),
        ({"output": "/proc/none"}, "/proc/none"),
    ],
)
def test_a_wrong_setting_is_explained_with_exit_status_2(
    pipeline_output: Path,
    glip_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    wrong: dict[str, object],
    message: str,
) -> None:
    command = arguments(pipeline_output, glip_folder, tmp_path / "out")
    assert main([*command, *(f"{key}={value}" for key, value in wrong.items())]) == 2
    assert message in capsys.readouterr().err


def test_an_error_during_training_is_explained_with_exit_status_2(
    pipeline_output: Path, glip_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = arguments(pipeline_output, glip_folder, tmp_path, steps=2)
    with patch.object(checkpoint, "save_glip", side_effect=OSError(28, "No space left on device")):
        assert main(command) == 2
    assert "the checkpoint of step 1 cannot be written" in capsys.readouterr().err
    with patch.object(run, "train", side_effect=FloatingPointError("the loss is not finite: nan")):
        assert main(command) == 2
    assert "the loss is not finite: nan; try a lower lr" in capsys.readouterr().err
    assert main(command) == 0
    intact = (tmp_path / STATE).read_bytes()
    for damaged in (b"damaged", intact[: len(intact) // 2], (tmp_path / "model.safetensors").read_bytes()):
        (tmp_path / STATE).write_bytes(damaged)
        assert main(command) == 2
        assert f"{STATE} is damaged; delete it" in capsys.readouterr().err


def test_help_lists_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(key in text for key in ("optim.steps", "short_sides", "init = miniature"))


def test_help_imports_no_torch() -> None:
    code = (
        "import sys; from pipeline.stages.ground.glip.training.run import main; "
        "code = main(['--help']); sys.exit('torch' in sys.modules or code)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_nothing_else_imports_training_code() -> None:
    folder = ROOT / "pipeline" / "stages" / "ground" / "glip"
    paths = [path for path in (ROOT / "pipeline").rglob("*.py") if folder / "training" not in path.parents]
    assert folder / "predict.py" in paths
    importing = [path for path in paths if any("glip.training" in name for name in imported(path))]
    assert importing == []


def imported(path: Path) -> list[str]:
    """Names of all modules that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    found = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found
