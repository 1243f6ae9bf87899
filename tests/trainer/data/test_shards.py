import logging
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from common.errors import UserError
from common.shards import list_shards
from tests.trainer.data.samples import write_shards
from trainer.data.index import find_samples
from trainer.data.shards import TRIES, SpanReader, stamp


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


def names(shards: str) -> list[str]:
    return [url.rpartition("/")[2] for url in list_shards(shards)]


def test_tars_of_a_folder_come_in_numeric_order(tmp_path: Path) -> None:
    touch(tmp_path, "10.tar", "9.tar", "9.tar.made.json", "readme.txt")
    assert names(str(tmp_path)) == ["9.tar", "10.tar"]


def test_globs_and_lists_are_read_once_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path, "a/1.tar", "a/2.tar", "b/3.tar")
    assert names(f"{tmp_path}/*/*.tar, {tmp_path}/a/2.tar") == ["1.tar", "2.tar", "3.tar"]
    assert "twice" in caplog.text


def test_the_pipelines_output_means_its_committed_train_shards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    touch(tmp_path, "train/00000.tar", "train/00001.tar", "grit/00000.tar", "_manifests/00000.json")
    with caplog.at_level(logging.WARNING):
        assert names(str(tmp_path)) == ["00000.tar"]
    assert "00001.tar has no manifest" in caplog.text


def test_a_url_of_any_store_will_do() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe({"/listed/1.tar": b"one", "/listed/2.tar": b"two"})
    urls = list_shards("memory://listed")
    assert urls == ["memory:///listed/1.tar", "memory:///listed/2.tar"]
    assert SpanReader().read([(urls[1], 1, 3), (urls[0], 0, 2)]) == [b"wo", b"on"]


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        ("", "no shards given"),
        ("/no/such/folder", "/no/such/folder does not exist"),
        ("/no/such/*.tar", r"/no/such/\*\.tar does not exist"),
        ("nosuchstore://bucket/a.tar", "nosuchstore"),
    ],
)
def test_what_is_not_there_is_the_users_error(shards: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}"):
        list_shards(shards)


def test_a_stamp_changes_with_the_shard(tmp_path: Path) -> None:
    path = write_shards(tmp_path, [1]) / "00000.tar"
    before = stamp(str(path))
    path.write_bytes(path.read_bytes() + bytes(512))
    assert stamp(str(path)) != before


def test_more_shards_than_open_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.shards.OPEN_FILES", 2)
    for i in range(5):
        (tmp_path / f"{i}.tar").write_bytes(b"%d" % i)
    reader = SpanReader()
    spans = [(str(tmp_path / f"{i % 5}.tar"), 0, 1) for i in range(10)]
    assert reader.read(spans) == [b"%d" % (i % 5) for i in range(10)]
    assert len(reader.open_files) == 2
    reader.close()


def failing(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, failures: int) -> list[Any]:
    """Requests by the arguments they had, of which those so many first end as a connection does that dies."""
    asked: list[Any] = []
    real = getattr(owner, name)

    def request(*arguments: Any, **named: Any) -> Any:
        asked.append(arguments[1:])
        if len(asked) <= failures:
            raise ConnectionResetError("it hung up")
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, request)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return asked


def test_of_many_parts_of_remote_files_only_those_that_failed_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fsspec.filesystem("memory").pipe({f"/failing/{i}.tar": b"part %d" % i for i in range(8)})
    spans = [(f"memory://failing/{i}.tar", 0, 6) for i in range(8)]
    asked = failing(monkeypatch, MemoryFileSystem, "cat_file", 3)
    assert SpanReader().read(spans) == [b"part %d" % i for i in range(8)]
    assert len(asked) == 8 + 3
    failing(monkeypatch, MemoryFileSystem, "cat_file", 8 + TRIES)
    with pytest.raises(UserError, match=r"failing/0.tar cannot be read: it hung up"):
        SpanReader().read(spans)


def test_a_connection_that_dies_while_samples_are_looked_for_is_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    local = write_shards(tmp_path, [3]) / "00000.tar"
    url = "memory://dying/00000.tar"
    fsspec.filesystem("memory").pipe("/dying/00000.tar", local.read_bytes())
    failing(monkeypatch, MemoryFile, "read", TRIES - 1)
    assert find_samples(url).bounds.tolist() == find_samples(str(local)).bounds.tolist()
    failing(monkeypatch, MemoryFile, "read", TRIES)
    with pytest.raises(UserError, match=r"dying/00000.tar cannot be read: it hung up"):
        find_samples(url)
