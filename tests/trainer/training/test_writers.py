"""Metrics of a run: metrics.jsonl, TensorBoard, W&B and the progress lines."""

import json
import logging
import math
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from hypergrit_common.errors import UserError
from trainer.batch import Losses
from trainer.config import LogConfig
from trainer.training.writers import Meter, Metrics, Progress, named_values, truncate

STEPS = 12


def open_metrics(output: Path, *, step: int = 0, **settings: Any) -> Metrics:
    config = LogConfig(**{"tensorboard": False, **settings})
    return Metrics(output, config, {"model_name": "clip"}, step=step, steps=STEPS)


def test_terms_are_losses_or_geometry_and_a_vector_gives_mean_minimum_and_maximum() -> None:
    terms = {"contrastive": torch.tensor(2.0), "curvature": torch.tensor([1.0, 3.0]), "logit_scale": torch.tensor(14.0)}
    values = {name: value.item() for name, value in named_values(Losses(loss=torch.tensor(5.0), terms=terms)).items()}
    assert values == {
        "loss/total": 5, "loss/contrastive": 2, "geometry/logit_scale": 14,
        "geometry/curvature": 2, "geometry/curvature/min": 1, "geometry/curvature/max": 3,
    }  # fmt: skip


def test_a_full_disk_is_a_user_error_and_closing_raises_no_other(tmp_path: Path) -> None:
    metrics = open_metrics(tmp_path)
    metrics.file = Path("/dev/full").open("a")  # noqa: SIM115
    with pytest.raises(UserError, match=r"No space left.*; free disk space, then repeat the command to resume"):
        metrics.write(1, {"loss/total": 1.0})
    metrics.close()


def test_values_that_are_not_finite_are_omitted_from_the_row(tmp_path: Path) -> None:
    metrics = open_metrics(tmp_path)
    metrics.write(1, {"loss/total": 2.0, "grad_norm": math.nan, "fp16/skipped": 1.0})
    metrics.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss/total": 2.0, "fp16/skipped": 1.0}\n'


def test_rows_after_the_checkpoint_and_an_incomplete_last_line_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    truncate(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    path.write_text('{"step": 1}\n{"ste')
    truncate(path, 9)
    assert path.read_text() == '{"step": 1}\n'


@pytest.mark.parametrize("line", [b"7", b"[]", b"null", b"{}", b'{"step":"x"}', b"\xff", b"[" * 100_000, b"x"])
def test_a_line_that_is_no_row_is_an_error_with_file_and_fix(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content := b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(UserError, match=r"^\S*metrics\.jsonl cannot be continued: line 2 .*; move it away.*$"):
        open_metrics(tmp_path, step=9)
    assert (tmp_path / "metrics.jsonl").read_bytes() == content


def test_files_of_a_run_that_are_no_files_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", MagicMock(Error=RuntimeError))
    for make in (os.mkdir, os.mkfifo):
        make(tmp_path / "metrics.jsonl")
        with pytest.raises(UserError, match=r"metrics\.jsonl cannot be continued: .* is a .*; move it away"):
            open_metrics(tmp_path)
        (tmp_path / "metrics.jsonl").rename(tmp_path / make.__name__)
    (tmp_path / "tensorboard").write_text("")
    with pytest.raises(UserError, match=r"tensorboard.*; free disk space"):
        open_metrics(tmp_path, tensorboard=True)
    (tmp_path / "wandb_id").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"wandb_id cannot be read: .*; remove it"):
        open_metrics(tmp_path, wandb_project="mine")


def test_the_evaluation_of_a_finished_run_has_one_row_however_often_the_command_is_repeated(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 6, "loss/total": 2.0}\n{"step": 6, "zero_shot": 0.1}\n{"step": 12, "loss/total": 1.0}\n')
    before = path.read_text()
    for _ in range(2):
        metrics = open_metrics(tmp_path, step=STEPS)
        metrics.write(STEPS, {"zero_shot": 0.2})
        metrics.close()
    assert path.read_text() == before + '{"step": 12, "zero_shot": 0.2}\n'


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    metrics = open_metrics(tmp_path, tensorboard=True)
    metrics.write(1, {"loss/total": 0.5})
    metrics.close()
    events = accumulators.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss/total")] == [(1, 0.5)]
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "loss/total": 0.5}


@pytest.mark.parametrize(
    ("module", "setting", "message"),
    [
        (
            "wandb",
            {"wandb_project": "mine"},
            r"log\.wandb_project=mine needs the package wandb .*pip install wandb, or",
        ),
        (
            "torch.utils.tensorboard",
            {"tensorboard": True},
            r"log\.tensorboard=true needs the package tensorboard .*pip install tensorboard, or",
        ),
    ],
    ids=["wandb", "tensorboard"],
)
def test_a_missing_package_is_an_error_with_two_ways_to_fix_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, setting: dict[str, Any], message: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=message):
        open_metrics(tmp_path, **setting)


def test_wandb_gets_the_configuration_and_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = MagicMock(Error=RuntimeError)
    monkeypatch.setitem(sys.modules, "wandb", service)
    for step in (1, 2):  # the second run resumes the first one
        metrics = open_metrics(tmp_path, step=step - 1, wandb_project="mine")
        metrics.write(step, {"loss/total": 0.5})
        metrics.close()
    first, second = (call.kwargs for call in service.init.call_args_list)
    assert first == second
    assert (first["project"], first["config"]) == ("mine", {"model_name": "clip"})
    service.init.return_value.log.assert_called_with({"loss/total": 0.5}, step=2)
    assert service.init.return_value.finish.call_count == 2


def test_paused_time_is_excluded_from_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("trainer.training.writers.time.perf_counter", lambda: now)
    meter = Meter()
    with meter.waiting():
        now += 4.0
    with meter.paused():
        now += 20.0
    now += 1.0
    meter.samples = 10
    assert meter.read() == {"samples_per_s": 2.0, "data_wait_share": 0.8, "paused_s": 20.0}


def test_without_a_terminal_a_log_line_shows_speed_waiting_and_remaining_time(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), Progress(0, 4, shown=True) as progress:
        progress.advance(1, {"loss/total": 3.0, "samples_per_s": 100.0, "data_wait_share": 0.25})
        progress.advance(2, {})
        progress.advance(4, {"loss/total": 2.5})
    assert [line.partition(",")[0] for line in caplog.messages] == ["step 1 of 4", "step 4 of 4"]
    assert "step 4 of 4, loss 2.5000, 100.0 samples/s, 25% waiting for data, 0.0 s left" in caplog.text
