"""Faults at the requests and I/O calls of a commit to S3; tests/soak/test_commits.py hits every call."""

from pathlib import Path

import fsspec
import pytest

from tests.pipeline.output.write.crash_runs import run_crashes
from tests.pipeline.output.write.crashes import REMOTE, Case


@pytest.mark.rest
@pytest.mark.parametrize("kinds", [("kill", "lost"), ("full", "kill_after", "truncated")])
def test_a_fault_at_a_call_leaves_objects_like_their_manifests_and_one_version_of_a_replaced_shard(
    server: str, tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    fsspec.filesystem("s3").makedirs("crashes", exist_ok=True)
    cases = list[Case]()
    for kind in kinds:
        strides = (4, 7) if kind in REMOTE else (97, 149)
        offsets = (3, 3) if kind in REMOTE else (7, 7)
        cases.append(Case(f"s3://crashes/{kind}", kind, strides[0], offsets[0]))
        cases.append(Case(f"s3://crashes/replaced-{kind}", kind, strides[1], offsets[1], replaces=True))
    assert min(run_crashes(tmp_path, *cases)) >= 2
