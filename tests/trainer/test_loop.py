"""Runs from beginning to end, and what becomes of them when something happens."""

import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.memory_loader import MemoryLoader
from tests.trainer.small_run import disk_full, fork, killed, run, said, small_config, terminated
from trainer import build, loop
from trainer.checkpoints.model import load_model
from trainer.checkpoints.run import checkpoints, newest
from trainer.distributed.process import Process

TIMINGS = ("samples_per_s", "data_wait_share")


def curve(output: Path) -> list[dict[str, Any]]:
    """The rows of the metrics without what depends on the machine."""
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMINGS} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbs."""
    output = tmp_path_factory.mktemp("whole") / "run"
    assert fork(output) == [0]
    return output


def test_a_run_learns_writes_a_row_a_step_and_leaves_a_model_that_loads(whole: Path) -> None:
    rows = curve(whole)
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[-1]["loss/total"] < rows[0]["loss/total"]
    assert {"loss/contrastive", "loss/entailment/text_image", "geometry/curvature", "lr", "grad_norm"} <= rows[0].keys()
    assert rows[0]["lr"] == 0
    loaded = load_model(whole / "model")
    assert loaded.config["record"]["steps"] == 12
    assert [path.name for path in checkpoints(whole / "checkpoints")] == [
        "step_00000005",
        "step_00000010",
        "step_00000012",
    ]


def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, whole: Path) -> None:
    output = tmp_path / "run"
    assert fork(output, at=8, faults=[killed]) == [-9]
    assert len(curve(output)) == 7  # beyond the checkpoint of step 5
    assert fork(output) == [0]
    assert curve(output) == curve(whole)
    for before, after in zip(tensors(whole), tensors(output), strict=True):
        assert torch.equal(before, after)


def tensors(output: Path) -> list[torch.Tensor]:
    return [value for _, value in sorted(load_file(output / "model" / "model.safetensors").items())]


def test_a_run_that_is_told_to_stop_saves_first_and_says_so(tmp_path: Path, whole: Path) -> None:
    output = tmp_path / "run"
    assert fork(output, at=7, faults=[terminated]) == [128 + 15]
    assert "stopped at step 8 of 12 and saved" in said(output).read_text()
    assert newest(output / "checkpoints") == output / "checkpoints" / "step_00000008"
    assert fork(output) == [0]
    assert curve(output) == curve(whole)


def test_a_full_disk_leaves_the_checkpoint_before_it_and_a_message(tmp_path: Path, whole: Path) -> None:
    output = tmp_path / "run"
    assert fork(output, at=6, faults=[disk_full]) == [2]
    message = said(output).read_text()
    assert "step 10 cannot be written" in message
    assert "step_00000005 is complete" in message
    assert [path.name for path in (output / "checkpoints").iterdir()] == ["step_00000005"]
    assert fork(output) == [0]
    assert curve(output) == curve(whole)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_lost_process_ends_the_other_with_a_message_and_both_go_on(
    tmp_path: Path, free_port: int, strategy: str
) -> None:
    output, key = tmp_path / "run", f"parallel.strategy={strategy}"
    assert fork(output, key, port=free_port, at=7, faults=[None, killed]) == [2, -9]
    assert "lost touch" in said(output).read_text()
    assert newest(output / "checkpoints") == output / "checkpoints" / "step_00000005"
    assert fork(output, key, port=free_port, faults=[None, None]) == [0, 0]
    undisturbed = tmp_path / "undisturbed"
    assert fork(undisturbed, key, port=free_port, faults=[None, None]) == [0, 0]
    assert curve(output) == curve(undisturbed)
    assert len(load_model(output / "model").config["record"]) > 0


def test_a_checkpoint_of_two_processes_goes_on_in_one(tmp_path: Path, free_port: int, whole: Path) -> None:
    output = tmp_path / "run"
    fork(output, "parallel.strategy=fsdp", port=free_port, at=7, faults=[killed, killed])
    assert fork(output) == [0]
    found, expected = curve(output)[-1], curve(whole)[-1]
    assert found["loss/total"] == pytest.approx(expected["loss/total"], rel=1e-3)


def test_a_loss_that_is_no_number_stops_the_run_and_names_step_terms_and_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "run", "shards=nan@5", "save.every=4") == 2
    message = capsys.readouterr().err
    assert "step 6: the loss is not finite" in message
    assert "loss/contrastive" in message
    assert "features are not finite: sample-5-3." in message
    assert "step_00000004 is complete" in message


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ("model.embed_dim=32", "model.embed_dim was 16, is 32"),
        ("model_name=meru", "model_name was 'hycoclip', is 'meru'"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused_with_the_key(
    whole: Path, capsys: pytest.CaptureFixture[str], other: str, named: str
) -> None:
    assert run(whole, other) == 2
    assert named in capsys.readouterr().err


def test_settings_that_do_not_fit_are_named_even_when_forced(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(whole, "model.embed_dim=32", "resume=anyway") == 2
    assert "visual_proj.weight is [16, 32], not [32, 32]" in capsys.readouterr().err


def test_a_run_that_should_not_go_on_says_what_is_there(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(whole, "resume=never") == 2
    assert "step_00000012 is there and resume=never" in capsys.readouterr().err


def test_a_place_that_cannot_be_used_is_named_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run(tmp_path / "file") == 2
    assert "file cannot be written" in capsys.readouterr().err
    for key, value in (("shards", "{}"), ("image_folders", "[{}]")):
        assert run(tmp_path / "run", f"evaluation.{key}={value.format(tmp_path / 'none')}") == 2
        assert f"evaluation.{key}: {tmp_path / 'none'} " in capsys.readouterr().err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def small(tmp_path: Path, *others: str) -> build.Run:
    with patch.object(build, "Loader", MemoryLoader):
        return build.build(small_config(tmp_path / "run", *others), Process(device=torch.device("cpu")))


def test_an_overflow_of_fp16_is_a_step_left_out_and_a_lower_scale(tmp_path: Path) -> None:
    run = small(tmp_path, "precision=fp16")
    run.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    values = loop.update(run, next(iter(run.loader)))
    assert math.isfinite(values["loss/total"])
    assert values["fp16/skipped"] == 1
    assert run.scaler.get_scale() == 2.0**59
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())


def test_bf16_trains_on_a_cpu(tmp_path: Path) -> None:
    run = small(tmp_path, "precision=bf16", "optim.warmup_steps=0")
    batch = next(iter(run.loader))
    losses = [loop.update(run, batch)["loss/total"] for _ in range(6)]
    assert losses[-1] < losses[0]


def test_scalars_are_clamped_after_the_step(tmp_path: Path) -> None:
    run = small(tmp_path, "model.max_logit_scale=2", "lr=0.0001", "optim.warmup_steps=0")
    loop.update(run, next(iter(run.loader)))
    assert run.model.logit_scale.item() == pytest.approx(math.log(2))
