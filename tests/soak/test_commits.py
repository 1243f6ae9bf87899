"""Soak tests of commits: a fault at every I/O call, and jobs that start at once on one output."""

from pathlib import Path

import fsspec
import pytest

from tests.pipeline.output.write.crash_runs import run_crashes
from tests.pipeline.output.write.crashes import FAULTS, REMOTE, Case
from tests.s3.conftest import moto, server  # noqa: F401

PARTS = 4

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", FAULTS[:6])
def test_a_fault_at_every_io_call_of_a_local_commit(tmp_path: Path, kind: str, part: int, replaces: bool) -> None:
    (n,) = run_crashes(tmp_path / "scratch", Case(str(tmp_path / "out"), kind, PARTS, part, replaces))
    assert n >= 60


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_at_every_call_of_a_commit_to_s3(
    server: str,  # noqa: F811
    tmp_path: Path,
    kind: str,
    part: int,
    replaces: bool,
) -> None:
    fsspec.filesystem("s3").makedirs("crashes", exist_ok=True)
    least = 3 if kind in REMOTE else 60
    (n,) = run_crashes(tmp_path, Case(f"s3://crashes/{kind}-{part}-{replaces}", kind, PARTS, part, replaces))
    assert n >= least
