"""Complete training runs, also after SIGKILL, SIGTERM, a full disk, a lost process or a NaN."""

import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.forks import replaced
from tests.patience import PATIENCE_S
from tests.trainer.data.samples import Files, train_files, write_shards
from tests.trainer.small_run import (
    fill_disk,
    kill,
    kill_once_saved,
    log_path,
    run,
    run_forked,
    small_run,
    small_sample,
    terminate,
)
from tests.trainer.training.test_step import write_run_with_nan
from trainer.checkpoints.folder import list_checkpoints, newest_checkpoint
from trainer.checkpoints.model import load_model
from trainer.evaluation.held_out import share
from trainer.evaluation.held_out.config import EvaluationConfig
from trainer.training.step import update

TIMINGS = ("samples_per_s", "data_wait_share", "paused_s")


def read_metrics(output: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without the values that depend on the machine."""
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMINGS} for row in rows]


def read_weights(output: Path) -> list[torch.Tensor]:
    return [value for _, value in sorted(load_file(output / "model" / "model.safetensors").items())]


def test_a_run_learns_and_writes_a_row_per_step_and_a_model_that_loads(uninterrupted: Path) -> None:
    rows = read_metrics(uninterrupted)
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[-1]["loss/total"] < rows[0]["loss/total"]
    assert {"loss/contrastive", "loss/entailment/text_image", "geometry/curvature", "lr", "grad_norm"} <= rows[0].keys()
    assert rows[0]["lr"] == rows[0]["data/equal_phrases"] == 0
    loaded = load_model(uninterrupted / "model")
    assert loaded.config["record"]["steps"] == 12
    assert [path.name for path in list_checkpoints(uninterrupted / "checkpoints")] == [
        "step_00000005",
        "step_00000010",
        "step_00000012",
    ]


def test_the_metrics_count_the_phrases_that_are_their_caption(tmp_path: Path) -> None:
    def files(number: int) -> Files:
        found = small_sample(number)
        return found | {f"parent{box:03d}.txt": found["child.txt"] for box in range(4 if number % 3 == 0 else 1)}

    write_shards(tmp_path / "shards", [16], files)
    assert run(tmp_path / "run", "steps=3") == 0
    assert [row["data/equal_phrases"] for row in read_metrics(tmp_path / "run")] == [8, 16, 24]


@pytest.mark.rest
def test_a_run_with_boxes_as_pairs_on_mixed_shards_resumes_exactly_on_two_processes(
    tmp_path: Path, free_port: int
) -> None:
    write_shards(tmp_path / "shards", [20, 20], lambda number: train_files(number, n_boxes=0 if number % 5 else 2))
    mixed = ("model_name=meru", "model.boxes_as_pairs=true", "data.max_bad_share=0", "steps=6", "save.every=3")
    assert run_forked(tmp_path / "whole", *mixed, port=free_port, faults=[None, None]) == [0, 0]
    kill = kill_once_saved(tmp_path / "run", 3)
    assert set(run_forked(tmp_path / "run", *mixed, port=free_port, at=4, faults=[kill, kill])) == {-9}
    assert run_forked(tmp_path / "run", *mixed, port=free_port, faults=[None, None]) == [0, 0]
    assert read_metrics(tmp_path / "run") == read_metrics(tmp_path / "whole")
    assert run_forked(tmp_path / "alone", *mixed) == [0]
    for row, other in zip(read_metrics(tmp_path / "alone"), read_metrics(tmp_path / "whole"), strict=True):
        assert row["loss/total"] == pytest.approx(other["loss/total"], rel=1e-4)
    assert read_metrics(tmp_path / "alone")[4]["data/boxes_per_sample"] == 0.2  # an epoch


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.rest)])
def test_a_run_on_streams_resumes_in_another_order_and_says_so(
    tmp_path: Path, free_port: int, ranks: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged shard is counted; an index cannot continue what a stream began."""
    caplog.set_level("INFO")  # the level of the command
    write_shards(tmp_path / "shards", [9, 9, 9, 9], small_sample)
    damaged = tmp_path / "shards" / "00002.tar"  # which the main process reads
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    files = ",".join(f"'pipe:cat {tmp_path}/shards/0000{i}.tar'" for i in range(4))
    streams = (f"data.shards=[{files}]", "data.reader=webdataset", "data.max_bad_share=0.5", "save.every=3")
    output, faults = tmp_path / "run", [kill_once_saved(tmp_path / "run", 3)] * ranks
    assert set(run_forked(output, *streams, "steps=8", port=free_port, at=4, faults=faults)) == {-9}
    assert run_forked(output, *streams, "steps=8", port=free_port, faults=[None] * ranks) == [0] * ranks
    assert [row["step"] for row in read_metrics(output)] == list(range(1, 9))
    assert read_metrics(output)[-1]["loss/total"] < read_metrics(output)[0]["loss/total"]
    log = (output / "train.log").read_text()
    assert "a stream cannot go back to the position of the checkpoint: after 24 samples" in log
    assert "pipe:cat ... is read up to a damage: unexpected end of data" in log
    record = json.loads((output / "model" / "config.json").read_text())["record"]
    assert record["data"] == {"reader": "webdataset", "shards": 4}
    assert run_forked(output, "steps=9", port=free_port, faults=[None] * ranks) == [2] * ranks


def test_a_killed_run_resumes_with_identical_metrics_and_weights(tmp_path: Path, uninterrupted: Path) -> None:
    output = tmp_path / "run"
    assert run_forked(output, at=8, faults=[kill]) == [-9]
    assert len(read_metrics(output)) == 7  # two rows more than the checkpoint of step 5
    assert run_forked(output) == [0]
    assert read_metrics(output) == read_metrics(uninterrupted)
    for expected, found in zip(read_weights(uninterrupted), read_weights(output), strict=True):
        assert torch.equal(expected, found)


def test_a_run_that_receives_sigterm_saves_a_checkpoint_and_logs_it(
    tmp_path: Path, uninterrupted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With other settings it does not resume, but for a new learning rate on request."""
    caplog.set_level("INFO")  # the level of the command
    output, changed = tmp_path / "run", tmp_path / "changed"
    assert run_forked(output, at=8, faults=[terminate]) == [128 + 15]
    assert "stopped at step 8 of 12 after saving a checkpoint; repeat the command" in log_path(output).read_text()
    assert newest_checkpoint(output / "checkpoints") == output / "checkpoints" / "step_00000008"
    shutil.copytree(output, changed)
    assert run_forked(output) == [0]
    assert read_metrics(output) == read_metrics(uninterrupted)
    assert run(changed, "lr=0.02") == 2
    assert run(changed, "lr=0.02", "optim.beta1=0.5", "resume=new_lr") == 2
    assert run(changed, "lr=0.02", "resume=new_lr") == 0
    rates, lines = [row["lr"] for row in read_metrics(changed)], (changed / "train.log").read_text().splitlines()
    assert rates[7] < rates[8]
    assert rates[7] == pytest.approx(0.01 * rates[8] / 0.02, rel=0.5)
    assert any("INFO hycoclip: " in line and "starting at step 0" in line for line in lines)
    assert any("ERROR stopped at step 8 of 12" in line for line in lines)
    assert any("ERROR" in line and "optim.lr was 0.01, is 0.02. Restore" in line for line in lines)
    assert any("ERROR" in line and "optim.beta1 was 0.9, is 0.5" in line for line in lines)


def test_a_signal_that_reaches_the_loader_processes_too_saves_a_checkpoint_after_the_running_step(
    tmp_path: Path,
) -> None:
    def terminate_all() -> None:
        for stop in ("-USR1", "-TERM"):
            workers = [str(process.pid) for process in multiprocessing.active_children()]
            subprocess.run(["kill", stop, *workers, str(os.getpid())], check=True)

    output, others = tmp_path / "run", ["data.workers=2", "log.every=1000", "save.every=1000"]
    assert run_forked(output, *others, at=5, faults=[terminate_all]) == [128 + signal.SIGUSR1]
    assert [path.name for path in list_checkpoints(output / "checkpoints")] == ["step_00000005"]


@pytest.mark.parametrize("stop", [signal.SIGUSR1, pytest.param(signal.SIGTERM, marks=pytest.mark.rest)])
def test_a_preemption_during_an_evaluation_saves_the_step_and_ends_with_the_exit_code(
    tmp_path: Path, stop: signal.Signals
) -> None:
    output = tmp_path / "run"
    arguments = ["steps=4", f"evaluation.shards={tmp_path / 'shards'}", "evaluation.every=3"]
    real, calls = share.all_ranks, []

    def all_ranks(value: Any) -> list[Any]:
        calls.append(value)
        if len(calls) == 1:  # in the first round of the first evaluation, after step 3
            os.kill(os.getpid(), stop)
        return real(value)

    with replaced(EvaluationConfig, "batch_size", 4), replaced(share, "all_ranks", all_ranks):
        started = time.monotonic()
        assert run_forked(output, *arguments) == [128 + stop]
        assert time.monotonic() - started < PATIENCE_S
    assert "stopped at step 3 of 4 after saving a checkpoint" in log_path(output).read_text()
    assert newest_checkpoint(output / "checkpoints") == output / "checkpoints" / "step_00000003"
    assert run_forked(output, *arguments) == [0]
    assert "retrieval/text_to_image/recall@5" in json.loads((output / "evaluation.json").read_text())


def test_a_full_disk_is_an_error_that_names_the_complete_checkpoint(tmp_path: Path, uninterrupted: Path) -> None:
    output = tmp_path / "run"
    assert run_forked(output, at=6, faults=[fill_disk]) == [2]
    message = log_path(output).read_text()
    assert "step 10 cannot be written" in message
    assert "step_00000005 is complete" in message
    assert [path.name for path in (output / "checkpoints").iterdir()] == ["step_00000005"]
    assert run_forked(output) == [0]
    assert read_metrics(output) == read_metrics(uninterrupted)


@pytest.mark.rest
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_lost_process_ends_the_other_with_an_error_and_the_run_resumes(
    tmp_path: Path, free_port: int, strategy: str
) -> None:
    output, key = tmp_path / "run", f"parallel.strategy={strategy}"
    assert run_forked(output, key, port=free_port, at=7, faults=[None, kill_once_saved(output, 5)]) == [2, -9]
    assert "process 1 of 2 (process id" in log_path(output).read_text()
    assert newest_checkpoint(output / "checkpoints") == output / "checkpoints" / "step_00000005"
    assert run_forked(output, key, port=free_port, faults=[None, None]) == [0, 0]
    uninterrupted = tmp_path / "uninterrupted"
    assert run_forked(uninterrupted, key, port=free_port, faults=[None, None]) == [0, 0]
    assert read_metrics(output) == read_metrics(uninterrupted)
    assert len(load_model(output / "model").config["record"]) > 0


@pytest.mark.rest
def test_a_checkpoint_of_two_processes_resumes_in_one(tmp_path: Path, free_port: int, uninterrupted: Path) -> None:
    output = tmp_path / "run"
    run_forked(output, "parallel.strategy=fsdp", port=free_port, at=7, faults=[kill_once_saved(output, 5)] * 2)
    assert run_forked(output) == [0]
    found, expected = read_metrics(output)[-1], read_metrics(uninterrupted)[-1]
    assert found["loss/total"] == pytest.approx(expected["loss/total"], rel=1e-3)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_step_terms_and_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, key = write_run_with_nan(tmp_path, at=6)
    assert run(tmp_path / "run", *arguments, "save.every=4") == 2
    message = capsys.readouterr().err
    assert "step 6: the loss is not finite" in message
    assert "loss/contrastive" in message
    assert f"features are not finite: {key}." in message
    assert "step_00000004 is complete" in message


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ("model.embed_dim=32", "model.embed_dim was 16, is 32"),
        ("model_name=meru", "model_name was 'hycoclip', is 'meru'"),
    ],
)
def test_a_checkpoint_with_other_settings_is_an_error_that_names_the_key(
    uninterrupted: Path, capsys: pytest.CaptureFixture[str], other: str, difference: str
) -> None:
    assert run(uninterrupted, other) == 2
    assert difference in capsys.readouterr().err


def test_tensors_that_do_not_fit_are_named_even_with_resume_anyway(
    uninterrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(uninterrupted, "model.embed_dim=32", "resume=anyway") == 2
    assert "visual_proj.weight is [16, 32], not [32, 32]" in capsys.readouterr().err


def test_resume_never_is_an_error_if_a_checkpoint_exists(
    uninterrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(uninterrupted, "resume=never") == 2
    assert "step_00000012 exists and resume=never" in capsys.readouterr().err


def test_paths_that_cannot_be_used_are_errors_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run(tmp_path / "file") == 2
    assert "file cannot be written" in capsys.readouterr().err
    for key, value in (("shards", "{}"), ("image_folders", "[{}]")):
        assert run(tmp_path / "run", f"evaluation.{key}={value.format(tmp_path / 'none')}") == 2
        assert f"evaluation.{key}: {tmp_path / 'none'} " in capsys.readouterr().err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_an_overflow_in_fp16_skips_the_step_and_lowers_the_scale(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "precision=fp16")
    run.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    values = update(run, next(iter(run.loader)))
    assert math.isfinite(values["loss/total"])
    assert values["fp16/skipped"] == 1
    assert run.scaler.get_scale() == 2.0**59
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())


def test_bf16_trains_on_a_cpu(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "precision=bf16", "optim.warmup_steps=0")
    batch = next(iter(run.loader))
    losses = [update(run, batch)["loss/total"] for _ in range(6)]
    assert losses[-1] < losses[0]


def test_scalars_are_clamped_after_the_step(tmp_path: Path) -> None:
    settings = ("model.temperature_init=0.5", "model.max_logit_scale=2", "lr=0.0001", "optim.warmup_steps=0")
    run = small_run(tmp_path / "run", *settings)
    run.model.logit_scale.data.fill_(3)
    update(run, next(iter(run.loader)))
    assert run.model.logit_scale.item() == pytest.approx(math.log(2))
