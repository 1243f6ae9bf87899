"""Faults at the requests and I/O calls of a commit to S3; tests/soak/test_commits.py hits every call."""

from pathlib import Path

import fsspec
import pytest

from tests.pipeline.output.write.crash_runs import run_crashes
from tests.pipeline.output.write.crashes import REMOTE

KINDS = ("kill", "lost", *(pytest.param(kind, marks=pytest.mark.rest) for kind in ("full", "kill_after", "truncated")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_a_call_leaves_no_committed_object_that_differs_from_its_manifest(
    server: str, tmp_path: Path, kind: str
) -> None:
    fsspec.filesystem("s3").makedirs("crashes", exist_ok=True)
    stride, offset = (4, 3) if kind in REMOTE else (97, 7)
    assert run_crashes(f"s3://crashes/{kind}", kind, tmp_path, stride, offset) >= 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_a_call_of_a_replacement_leaves_the_old_shard_or_the_new_one(
    server: str, tmp_path: Path, kind: str
) -> None:
    fsspec.filesystem("s3").makedirs("crashes", exist_ok=True)
    stride, offset = (7, 3) if kind in REMOTE else (149, 7)
    assert run_crashes(f"s3://crashes/replaced-{kind}", kind, tmp_path, stride, offset, replaces=True) >= 2
