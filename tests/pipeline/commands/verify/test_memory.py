"""Shards that cannot be checked because the machine lacks memory: they are no damage, and are never computed again."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import pyarrow as pa
import pytest

from hypergrit_common.images import ImageRejected
from pipeline.commands import verify as module
from pipeline.commands.verify import Checker, check_shards, main
from pipeline.output import contents
from pipeline.output.manifest import failed_shard
from pipeline.output.store import Store
from pipeline.read.types import Task
from pipeline.run import local
from pipeline.run.steps import Failed
from tests.pipeline.commands.verify.damage import flip, write_two
from tests.pipeline.here import running_here


def lack_of_opencv() -> cv2.error:
    error = cv2.error("Failed to allocate 3 bytes")
    error.code = -4
    return error


def rejected() -> ImageRejected:
    error = ImageRejected("undecodable", "no memory")
    error.__cause__ = MemoryError()
    return error


LACKS: dict[str, Callable[[], Exception]] = {
    "Python": MemoryError,
    "Arrow": lambda: pa.ArrowMemoryError("malloc of size 64 failed"),
    "system": lambda: OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    "OpenCV": lack_of_opencv,
    "image": rejected,
}
PLACES = [
    (contents, "file_hash"),
    (module, "read_places"),
    (module, "read_batches"),
    (module, "decode"),
    (module, "count_shard"),
]


def fail(patch: pytest.MonkeyPatch, place: tuple[Any, str], make: Callable[[], Exception], shard: int = 1) -> None:
    """Let a function that reads files of a shard raise for it."""
    whole = getattr(*place)

    def read(*arguments: Any, **options: Any) -> Any:
        names = [str(getattr(item, "path", item)) for item in arguments]
        if any(f"{shard:05d}" in name for name in names) or not any("0000" in name for name in names):
            raise make()
        return whole(*arguments, **options)

    patch.setattr(*place, read)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[1])
@pytest.mark.parametrize("kind", LACKS)
def test_a_lack_of_memory_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: tuple[Any, str]
) -> None:
    write_two(tmp_path)
    fail(monkeypatch, place, LACKS[kind])
    found = Checker(str(tmp_path)).compute(Task(1, 4, None))
    assert found.problems == []
    assert found.lack.startswith("could not be checked with ")
    assert " GB of memory (" in found.lack


def test_an_allocation_beyond_the_limit_of_the_process_is_a_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_two(tmp_path)
    monkeypatch.setattr(local, "LEAST_BYTES", 50_000_000)
    monkeypatch.setattr(local, "MEMORY_SHARE", 0.0)
    monkeypatch.setattr(module, "count_shard", lambda *_: bytearray(1_000_000_000))
    found = Checker(str(tmp_path), 2).compute(Task(1, 4, None))
    assert found.lack == "could not be checked with 50 MB of memory (MemoryError)"


def test_a_shard_that_was_not_checked_is_named_ends_with_3_and_is_not_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_two(tmp_path)
    fail(monkeypatch, (contents, "file_hash"), MemoryError)
    with running_here():
        assert main([str(tmp_path), "processes=1", "requeue=true"]) == 3
        text = capsys.readouterr().out
        assert "shard 1: could not be checked with" in text
        assert text.endswith("1 shard could not be checked: 1; give processes=1, or more memory\n")
        assert "intact" not in text
        assert (tmp_path / "_manifests/00001.json").exists()
        flip(tmp_path / "train/00002.tar")
        assert main([str(tmp_path), "processes=1", "requeue=true"]) == 1
    assert "1 shard is broken: 2; they are in the queue" in capsys.readouterr().out
    assert [path.name for path in sorted((tmp_path / "_manifests").iterdir())] == ["00001.json"]


@pytest.mark.parametrize(("status", "is_lack"), [("SIGKILL", True), ("SIGSEGV", False)])
def test_a_killed_process_is_a_lack_and_a_crashed_one_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, is_lack: bool
) -> None:
    failed = Failed(failed_shard(Task(7, 0, None), "checked", f"ProcessDiedError: killed by {status}", "", attempts=1))
    monkeypatch.setattr("pipeline.run.loop.pick_runner", lambda _: lambda *_: iter([failed]))
    (found,) = check_shards(Store(str(tmp_path)), {7: None}, 1)
    assert (bool(found.lack), bool(found.problems)) == (is_lack, not is_lack)
