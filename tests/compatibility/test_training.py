"""Runs, checkpoints and models of version 0.1.

v0_1/run is a run that SIGTERM stopped after step 6 of 12; v0_1/whole is the same run without interruption.
"""

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trainer import evaluate, train
from trainer.checkpoints.model import load_model

V0_1 = Path(__file__).parent / "v0_1"
TIMINGS = ("samples_per_s", "data_wait_share")
PRESENT_KEYS = (
    "model_name=hycoclip",
    "batch_size=8",
    "micro_batch_size=8",
    "precision=fp32",
    "device=cpu",
    "lr=0.01",
    "optim.warmup_steps=2",
    "save.every=6",
    "save.keep=1",
    "log.every=1",
    "log.tensorboard=false",
    "model.image.size_px=16",
    "model.image.kwargs={embed_dim: 32, depth: 1, num_heads: 2, patch_size: 8}",
    "model.text.vocab_size=514",
    "model.text.context_length=8",
    "model.text.width=32",
    "model.text.layers=1",
    "model.text.heads=2",
    "model.embed_dim=16",
    "shards=shards",
    "tokenizer=merges.txt",
    "data.workers=0",
    "steps=12",
    "output=run",
)


@pytest.fixture
def stopped_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the stopped run, with its data, in the working folder."""
    for name in ("shards", "run"):
        shutil.copytree(V0_1 / name, tmp_path / name)
    shutil.copy(V0_1 / "merges.txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def read_metrics(output: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without the values that depend on the machine."""
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMINGS} for row in rows]


@pytest.mark.parametrize("arguments", [PRESENT_KEYS, ("run/config.yaml",)], ids=["present keys", "saved config.yaml"])
def test_a_stopped_run_resumes_with_the_metrics_and_weights_of_the_uninterrupted_one(
    stopped_run: Path, arguments: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert train.main(arguments) == 0
    assert "resuming from run/checkpoints/step_00000006" in caplog.text
    found_rows, expected_rows = read_metrics(stopped_run), read_metrics(V0_1 / "whole")
    assert [row["step"] for row in found_rows] == list(range(1, 13))
    for found, expected in zip(found_rows, expected_rows, strict=True):
        assert found == pytest.approx(expected, rel=2e-5, abs=1e-5)
    # Another kind of CPU rounds differently. AdamW divides by the size of a gradient: weights with gradients close to 0
    # then differ by up to 0.002, although all metrics agree to five digits.
    tolerance = 0 if found_rows == expected_rows else 0.005
    found_weights = load_file(stopped_run / "model" / "model.safetensors")
    expected_weights = load_file(V0_1 / "whole" / "model" / "model.safetensors")
    torch.testing.assert_close(found_weights, expected_weights, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("old", "new"), [("batch", "batch_size"), ("micro_batch", "micro_batch_size")])
def test_an_old_key_is_an_error_that_names_the_new_one(
    stopped_run: Path, capsys: pytest.CaptureFixture[str], old: str, new: str
) -> None:
    arguments = [item for item in PRESENT_KEYS if not item.startswith(new)]
    assert train.main([*arguments, f"{old}=8"]) == 2
    assert capsys.readouterr().err == f"error: {old}=8: the key {old} is now called {new}\n"
    Path("job.yaml").write_text(f"{old}: 8\n")
    assert train.main(["job.yaml", *arguments]) == 2
    assert capsys.readouterr().err == f"error: job.yaml: the key {old} is now called {new}\n"


def test_a_model_loads_and_is_evaluated(tmp_path: Path) -> None:
    folder, output = V0_1 / "whole" / "model", tmp_path / "results.json"
    loaded = load_model(folder)
    assert loaded.config["record"]["training"]["batch"] == 8
    weights = load_file(folder / "model.safetensors")
    torch.testing.assert_close(dict(loaded.model.state_dict()), weights, rtol=0, atol=0)
    assert evaluate.main([str(folder), f"shards={V0_1 / 'shards'}", "device=cpu", f"output={output}"]) == 0
    results = json.loads(output.read_text())
    assert results["retrieval/text_to_image/chance@1"] == pytest.approx(1 / 24)
    assert {"entailment/text_image/order", "entailment/cross_text/auc"} <= results.keys()
