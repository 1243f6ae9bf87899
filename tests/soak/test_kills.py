"""Soak tests of resuming: a run that is killed at random moments ends with the result of an uninterrupted run."""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pipeline import grit
from tests.soak.processes import Main, run, run_until
from tests.soak.runs import Reference, job_in_one_process, pipeline_arguments, training_arguments
from trainer import train

N_RUNS = 10
MAX_KILLS = 8
SPEED_METRICS = ("samples_per_s", "data_wait_share", "paused_s")

pytestmark = pytest.mark.timeout(1800)


def shard_digests(output: Path) -> dict[str, str]:
    """Return the SHA-256 of all shard files and manifests of a pipeline job, by name."""
    files = [path for kind in ("train", "grit", "arrow", "_manifests") for path in (output / kind).rglob("*")]
    return {str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def training_result(output: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the SHA-256 of the final weights, and the metrics that do not depend on speed."""
    weights = (output / "model" / "model.safetensors").read_bytes()
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text("utf-8").splitlines()]
    metrics = [{name: value for name, value in row.items() if name not in SPEED_METRICS} for row in rows]
    return hashlib.sha256(weights).hexdigest(), metrics


def after(seconds: float) -> Callable[[], bool]:
    """Return a function that returns true once `seconds` have passed."""
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() >= deadline


def run_with_kills(main: Main, arguments: list[str], log: Path, reference: Reference, rng: Random) -> None:
    """Run `main` until it finishes. Up to `MAX_KILLS` times, kill it at a random moment of the reference's duration."""
    for _ in range(MAX_KILLS):
        if not run_until(main, arguments, log, after(rng.uniform(0, reference.seconds))):
            return
    run(main, arguments, log)


def run_with_one_kill(main: Main, arguments: list[str], log: Path, is_reached: Callable[[], bool]) -> None:
    """Run `main`, kill it once `is_reached` returns true, and run it again to its end."""
    assert run_until(main, arguments, log, is_reached), "the run ended before it could be killed"
    run(main, arguments, log)


@pytest.mark.soak
@pytest.mark.parametrize("index", range(N_RUNS))
def test_pipeline_job_killed_at_random_moments_gives_the_same_bytes(
    index: int, soak_seed: int, tars: Path, pipeline_reference: Reference, tmp_path: Path
) -> None:
    output, rng = tmp_path / "output", Random(f"pipeline {soak_seed} {index}")
    arguments = pipeline_arguments(tars, output)
    run_with_kills(grit.main, arguments, tmp_path / "log", pipeline_reference, rng)
    assert shard_digests(output) == shard_digests(pipeline_reference.output)


@pytest.mark.soak
@pytest.mark.parametrize("index", range(N_RUNS))
def test_training_run_killed_at_random_moments_gives_the_same_weights_and_metrics(
    index: int, soak_seed: int, pipeline_reference: Reference, training_reference: Reference, tmp_path: Path
) -> None:
    output, rng = tmp_path / "run", Random(f"training {soak_seed} {index}")
    arguments = training_arguments(pipeline_reference.output / "train", output)
    run_with_kills(train.main, arguments, tmp_path / "log", training_reference, rng)
    assert training_result(output) == training_result(training_reference.output)


def test_pipeline_job_killed_after_its_first_shard_gives_the_same_bytes(
    tars: Path, pipeline_reference: Reference, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    first_manifest = output / "_manifests" / "00000.json"
    run_with_one_kill(job_in_one_process, pipeline_arguments(tars, output), tmp_path / "log", first_manifest.exists)
    assert shard_digests(output) == shard_digests(pipeline_reference.output)


@pytest.mark.rest
def test_training_run_killed_after_its_first_checkpoint_gives_the_same_weights_and_metrics(
    pipeline_reference: Reference, training_reference: Reference, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    arguments = training_arguments(pipeline_reference.output / "train", output)
    first_checkpoint = output / "checkpoints" / "step_00000006"
    run_with_one_kill(train.main, arguments, tmp_path / "log", first_checkpoint.exists)
    assert training_result(output) == training_result(training_reference.output)
