"""Faults at the I/O calls of a commit on a local disk; tests/soak/test_commits.py hits every call."""

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hypergrit_common.errors import UserError
from pipeline.config import WriteConfig
from pipeline.faults import ShardError
from pipeline.output import commit as staging
from pipeline.output.commit import HashedFile
from pipeline.output.write.stage import write_shard
from tests.pipeline.output.write.crash_runs import run_crashes
from tests.pipeline.output.write.crashes import Case
from tests.pipeline.output.write.shards import PROVENANCE, plan, table

ROOT = Path(__file__).parents[4]


REST = pytest.mark.rest


@pytest.mark.parametrize(
    ("kinds", "replaced"),
    [
        (("half", "kill"), ("full", "kill")),
        pytest.param(("full", "broken", "kill_after"), ("broken", "short", "kill_after"), marks=REST),
    ],
)
def test_a_fault_at_an_io_call_leaves_files_like_their_manifests_and_one_version_of_a_replaced_shard(
    tmp_path: Path, kinds: tuple[str, ...], replaced: tuple[str, ...]
) -> None:
    # Call 4 writes the first tar; later ones write the parquet, the Arrow file, and publish.
    cases = [Case(str(tmp_path / kind), kind, stride=43, offset=4) for kind in kinds]
    cases += [Case(str(tmp_path / f"new-{kind}"), kind, stride=23, offset=3, replaces=True) for kind in replaced]
    assert min(run_crashes(tmp_path / "scratch", *cases)) >= 4


def test_a_limit_on_the_size_of_files_is_an_error_and_commits_nothing(tmp_path: Path) -> None:
    code = (
        "import resource\n"
        "from pipeline.output.write.stage import write_shard, WriteConfig\n"
        "from tests.pipeline.output.write.shards import *\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        f"write_shard(table(), plan(), WriteConfig(formats=('train',)), {str(tmp_path)!r}, PROVENANCE)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "UserError: cannot write" in done.stderr
    assert "File too large; raise the limit for the size of files (ulimit -f)" in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_full_folder_for_temporary_files_fails_the_shard_and_names_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine of one worker is full; others may write the shard."""

    class Full(HashedFile):
        def write(self, data: object, /) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(staging, "HashedFile", Full)
    with pytest.raises(ShardError, match=rf"on {socket.gethostname()}: No space left on device; .*TMPDIR"):
        write_shard(table(), plan(), WriteConfig(), "memory://bucket/full", PROVENANCE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EIO, "Please reduce your request rate"), ShardError),
        (TimeoutError("no answer"), ShardError),
        (PermissionError("Access Denied"), UserError),
        (FileNotFoundError("The specified bucket does not exist"), UserError),
    ],
    ids=repr,
)
def test_an_upload_that_fails_for_one_shard_alone_fails_that_shard(
    monkeypatch: pytest.MonkeyPatch, error: OSError, expected: type[Exception]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "put_file", refuse)
    with pytest.raises(expected, match="cannot write memory://"):
        write_shard(table(), plan(), WriteConfig(), "memory://bucket/refused", PROVENANCE)


def test_a_write_that_takes_only_a_part_is_repeated(tmp_path: Path) -> None:
    class Narrow:
        data = b""

        def write(self, data: memoryview) -> int:
            self.data += bytes(data[:3])
            return min(3, len(data))

    narrow = Narrow()
    file = HashedFile(narrow)  # type: ignore[arg-type]
    assert file.write(b"0123456789") == 10
    assert (narrow.data, file.n_bytes) == (b"0123456789", 10)


def test_the_folder_of_a_killed_upload_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os, signal\n"
        "from pipeline.output.write import stage\n"
        "from tests.pipeline.output.write.shards import *\n"
        "stage.write_arrow = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "stage.write_shard(table(), plan(), stage.WriteConfig(), 'memory://bucket/out', PROVENANCE)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    write_shard(table(), plan(), WriteConfig(), "memory://bucket/crash", PROVENANCE)
    assert list(tmp_path.iterdir()) == []
