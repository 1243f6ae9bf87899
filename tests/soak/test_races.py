"""Jobs that start at once on one output: one writes it, the others report the holder."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline import grit
from tests.soak.processes import kill, run, start
from tests.soak.runs import Reference, job_in_one_process, pipeline_arguments
from tests.soak.test_kills import shard_digests

pytestmark = pytest.mark.timeout(1800)
N_ROUNDS = 8
HELD = re.compile(r"error: the output .* is in use by a job on host .* \(process \d+, started .*\)")


def race(arguments: Sequence[str], n_jobs: int, logs: Path) -> list[int | None]:
    """Start jobs at once and return their exit codes."""
    jobs = [start(grit.main, arguments, logs / f"log{i}") for i in range(n_jobs)]
    try:
        for job in jobs:
            job.join()
    finally:
        for job in jobs:
            if job.exitcode is None:
                kill(job)
    return [job.exitcode for job in jobs]


def race_and_check(tars: Path, reference: Reference, folder: Path, n_jobs: int) -> None:
    output = folder / "output"
    codes = race(pipeline_arguments(tars, output), n_jobs, folder)
    assert 0 in codes
    for i, code in enumerate(codes):
        log = (folder / f"log{i}").read_text()
        assert code in (0, 2), log
        assert "Traceback" not in log
        assert (code == 2) == bool(HELD.search(log)), log
    assert shard_digests(output) == shard_digests(reference.output)
    assert not [path.name for path in output.rglob("*") if "lease" in path.name or path.name.endswith(".tmp")]


@pytest.mark.rest
def test_of_three_jobs_at_once_one_writes_the_output(tars: Path, pipeline_reference: Reference, tmp_path: Path) -> None:
    race_and_check(tars, pipeline_reference, tmp_path, 3)


@pytest.mark.soak
@pytest.mark.parametrize("n_jobs", [2, 3])
@pytest.mark.parametrize("index", range(N_ROUNDS))
def test_jobs_at_once(tars: Path, pipeline_reference: Reference, tmp_path: Path, index: int, n_jobs: int) -> None:
    race_and_check(tars, pipeline_reference, tmp_path, n_jobs)


def test_a_killed_job_leaves_a_lease_that_the_next_job_takes_over(
    tars: Path, pipeline_reference: Reference, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    job = start(job_in_one_process, pipeline_arguments(tars, output), tmp_path / "log")
    while not (output / "_manifests" / "00000.json").exists():
        job.join(0.01)
    kill(job)
    assert (output / "_lease.json").exists()
    run(job_in_one_process, pipeline_arguments(tars, output), tmp_path / "log")
    assert "taking over the output" in (tmp_path / "log").read_text()
    assert shard_digests(output) == shard_digests(pipeline_reference.output)
