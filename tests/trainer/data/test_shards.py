import logging
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from hypergrit_common.errors import UserError
from hypergrit_common.shards import list_shards
from tests.trainer.data.samples import write_shards
from trainer.data.index import index_shard
from trainer.data.shards import MAX_ATTEMPTS, ByteRange, ByteRangeReader


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


def names(shards: str) -> list[str]:
    return [url.rpartition("/")[2] for url in list_shards(shards)]


def test_tars_of_a_folder_are_listed_in_numeric_order(tmp_path: Path) -> None:
    touch(tmp_path, "10.tar", "9.tar", "9.tar.made.json", "readme.txt")
    assert names(str(tmp_path)) == ["9.tar", "10.tar"]


def test_shard_that_matches_two_patterns_is_listed_once_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    touch(tmp_path, "a/1.tar", "a/2.tar", "b/3.tar")
    assert names(f"{tmp_path}/*/*.tar, {tmp_path}/a/2.tar") == ["1.tar", "2.tar", "3.tar"]
    assert "twice" in caplog.text


def test_only_committed_train_shards_of_a_pipeline_output_are_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    touch(tmp_path, "train/00000.tar", "train/00001.tar", "grit/00000.tar", "_manifests/00000.json")
    with caplog.at_level(logging.WARNING):
        assert names(str(tmp_path)) == ["00000.tar"]
    assert "00001.tar has no manifest" in caplog.text


def test_shards_of_a_remote_store_are_listed_and_read() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe({"/listed/1.tar": b"one", "/listed/2.tar": b"two"})
    urls = list_shards("memory://listed")
    assert urls == ["memory:///listed/1.tar", "memory:///listed/2.tar"]
    assert ByteRangeReader().read([ByteRange(urls[1], 1, 3), ByteRange(urls[0], 0, 2)]) == [b"wo", b"on"]


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ("", "no shards given"),
        ("/no/such/folder", "/no/such/folder does not exist"),
        ("/no/such/*.tar", r"/no/such/\*\.tar does not exist"),
        ("nosuchstore://bucket/a.tar", "nosuchstore"),
    ],
)
def test_missing_shards_raise_a_user_error(shards: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        list_shards(shards)


def test_least_recently_used_files_are_closed_at_the_limit_of_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.shards.MAX_OPEN_FILES", 2)
    for i in range(5):
        (tmp_path / f"{i}.tar").write_bytes(b"%d" % i)
    reader = ByteRangeReader()
    ranges = [ByteRange(str(tmp_path / f"{i % 5}.tar"), 0, 1) for i in range(10)]
    assert reader.read(ranges) == [b"%d" % (i % 5) for i in range(10)]
    assert len(reader.open_files) == 2
    reader.close()


def failing(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, failures: int) -> list[Any]:
    """Patch a method to fail `failures` times with a connection error; the result collects its calls' arguments."""
    calls: list[Any] = []
    real = getattr(owner, name)

    def request(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments[1:])
        if len(calls) <= failures:
            raise ConnectionResetError("connection lost")
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, request)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return calls


def test_only_failed_range_requests_are_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fsspec.filesystem("memory").pipe({f"/failing/{i}.tar": b"part %d" % i for i in range(8)})
    ranges = [ByteRange(f"memory://failing/{i}.tar", 0, 6) for i in range(8)]
    calls = failing(monkeypatch, MemoryFileSystem, "cat_file", 3)
    assert ByteRangeReader().read(ranges) == [b"part %d" % i for i in range(8)]
    assert len(calls) == 8 + 3
    failing(monkeypatch, MemoryFileSystem, "cat_file", 8 + MAX_ATTEMPTS)
    with pytest.raises(UserError, match=r"failing/0.tar cannot be read: connection lost"):
        ByteRangeReader().read(ranges)


def test_indexing_retries_after_a_lost_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    local = write_shards(tmp_path, [3]) / "00000.tar"
    url = "memory://unreliable/00000.tar"
    fsspec.filesystem("memory").pipe("/unreliable/00000.tar", local.read_bytes())
    failing(monkeypatch, MemoryFile, "read", MAX_ATTEMPTS - 1)
    assert index_shard(url).starts.tolist() == index_shard(str(local)).starts.tolist()
    failing(monkeypatch, MemoryFile, "read", MAX_ATTEMPTS)
    with pytest.raises(UserError, match=r"unreliable/00000.tar cannot be read: connection lost"):
        index_shard(url)
