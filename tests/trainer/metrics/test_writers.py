"""What a run writes down."""

import json
import logging
import math
import sys
import time
from pathlib import Path

import pytest
import torch

from common.errors import UserError
from common.jsonl import truncate
from tests.trainer.small_run import small_config
from trainer.batch import Losses
from trainer.metrics.progress import Progress
from trainer.metrics.writers import Meter, Metrics, named_values


def test_terms_are_losses_or_geometry_and_a_vector_is_its_mean_and_ends() -> None:
    terms = {"contrastive": torch.tensor(2.0), "curvature": torch.tensor([1.0, 3.0]), "logit_scale": torch.tensor(14.0)}
    values = {name: value.item() for name, value in named_values(Losses(loss=torch.tensor(5.0), terms=terms)).items()}
    assert values == {
        "loss/total": 5, "loss/contrastive": 2, "geometry/logit_scale": 14,
        "geometry/curvature": 2, "geometry/curvature/min": 1, "geometry/curvature/max": 3,
    }  # fmt: skip


def test_a_full_disk_is_the_users_to_mend_also_when_the_run_then_ends(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    metrics = Metrics(tmp_path, small_config(tmp_path), step=0)
    with pytest.raises(UserError, match=r"No space left.* make room"):
        metrics.write(1, {"loss/total": 1.0})
    metrics.close()


def test_a_gradient_that_overflowed_leaves_a_row_that_any_reader_of_json_reads(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, small_config(tmp_path), step=0)
    metrics.write(1, {"loss/total": 2.0, "grad_norm": math.nan, "fp16/skipped": 1.0})
    metrics.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss/total": 2.0, "fp16/skipped": 1.0}\n'


def test_rows_after_the_checkpoint_and_a_torn_last_line_go(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    truncate(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    path.write_text('{"step": 1}\n{"ste')
    truncate(path, 9)
    assert path.read_text() == '{"step": 1}\n'


def test_the_evaluation_of_a_finished_run_has_one_row_however_often_the_command_is_given(tmp_path: Path) -> None:
    config, path = small_config(tmp_path), tmp_path / "metrics.jsonl"
    path.write_text('{"step": 6, "loss/total": 2.0}\n{"step": 6, "zero_shot": 0.1}\n{"step": 12, "loss/total": 1.0}\n')
    before = path.read_text()
    for step in (12, 12):
        metrics = Metrics(tmp_path, config, step)
        metrics.write(step, {"zero_shot": 0.2})
        metrics.close()
    assert path.read_text() == before + '{"step": 12, "zero_shot": 0.2}\n'


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    metrics = Metrics(tmp_path, small_config(tmp_path / "run", "log.tensorboard=true"), step=0)
    metrics.write(1, {"loss/total": 0.5})
    metrics.close()
    events = accumulators.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss/total")] == [(1, 0.5)]
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "loss/total": 0.5}


@pytest.mark.parametrize(
    ("module", "setting"), [("wandb", "log.wandb_project=mine"), ("torch.utils.tensorboard", "log.tensorboard=true")]
)
def test_a_writer_whose_package_is_missing_says_which_and_how_to_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, setting: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=f"{setting.split('=')[0]}=.*pip install"):
        Metrics(tmp_path, small_config(tmp_path / "run", setting), step=0)


def test_time_that_is_not_training_counts_for_nothing() -> None:
    meter = Meter()
    with meter.waiting():
        time.sleep(0.05)
    with meter.paused():
        time.sleep(0.2)
    meter.samples = 10
    figures = meter.read()
    assert figures["data_wait_share"] > 0.8
    assert figures["samples_per_s"] > 10 / 0.2


def test_without_a_terminal_a_line_tells_speed_waiting_and_time_left(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), Progress(0, 4, shown=True) as progress:
        progress.advance(2, {"loss/total": 3.0, "samples_per_s": 100.0, "data_wait_share": 0.25})
        progress.advance(4, {"loss/total": 2.5})
    assert "step 4 of 4, loss 2.5000, 100.0 samples/s, 25% waiting for data, 0 s left" in caplog.text
