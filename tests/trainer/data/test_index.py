import dataclasses
import os
from pathlib import Path

import fsspec
import pytest
import webdataset

from hypergrit_common import remote
from hypergrit_common.errors import UserError
from hypergrit_common.samples import sample_members
from hypergrit_common.shards import list_shards
from tests.trainer.data.samples import train_files, write_shards, write_tar
from trainer.data import indexing
from trainer.data.index import SampleIndex, index_shard
from trainer.data.indexing import build_index
from trainer.data.shards import ByteRangeReader, ShardFile


def keys(index: SampleIndex) -> list[str]:
    """Keys of the samples, read from their byte ranges."""
    contents = ByteRangeReader().read([index.byte_range(sample) for sample in range(index.n_samples)])
    return [next(sample_members(data)).key for data in contents]


def test_samples_equal_those_of_webdataset(tmp_path: Path) -> None:
    samples = [(f"x/{n}.5" if n % 3 else f"{n}", train_files(n)) for n in range(9)]
    path = str(write_tar(tmp_path / "a.tar", samples))
    theirs = list(webdataset.WebDataset(path, shardshuffle=False))
    index = SampleIndex([index_shard(path)])
    assert keys(index) == [sample["__key__"] for sample in theirs]
    contents = ByteRangeReader().read([index.byte_range(sample) for sample in range(9)])
    for data, sample in zip(contents, theirs, strict=True):
        files = {name: data[offset : offset + size] for _, name, offset, size in sample_members(data)}
        assert files == {name: value for name, value in sample.items() if not name.startswith("__")}


@pytest.mark.parametrize("past", [200, 700, 2050])
def test_truncated_shard_is_logged_and_its_complete_samples_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, past: int
) -> None:
    folder = write_shards(tmp_path, [5, 5])
    path = folder / "00001.tar"
    path.write_bytes(path.read_bytes()[: index_shard(str(path)).byte_range(3).start + past])
    index = build_index([str(folder / "00000.tar"), str(path)])
    assert index.counts == (5, 3)
    assert keys(index) == [f"{n:04d}" for n in range(8)]
    assert "00001.tar: truncated" in caplog.text


def test_tar_without_end_mark_is_logged_and_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_shards(tmp_path, [3]) / "00000.tar"
    path.write_bytes(path.read_bytes()[: index_shard(str(path)).byte_range(2).end])
    assert build_index([str(path)]).n_samples == 3
    assert "no end-of-archive mark" in caplog.text


@pytest.mark.parametrize("content", [b"", b"no tar at all" * 100, bytes(10240)])
def test_shards_without_samples_raise_a_user_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "00000.tar"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"no sample in 1 shard: .*00000\.tar"):
        build_index([str(path)])


def test_empty_shard_among_others_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_shards(tmp_path, [0, 2, 0])
    assert build_index([str(folder / f"0000{i}.tar") for i in range(3)]).counts == (0, 2, 0)
    assert not caplog.records


def test_cached_index_is_used_until_the_shard_changes_or_its_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path / "shards", [4])
    urls, cache = [str(folder / "00000.tar")], str(tmp_path / "index")
    assert build_index(urls, cache).counts == (4,)
    indexed = []
    monkeypatch.setattr("trainer.data.indexing.index_shard", lambda url: indexed.append(url) or index_shard(url))
    assert build_index(urls, cache).counts == (4,)
    assert not indexed
    write_shards(tmp_path / "shards", [6])
    assert build_index(urls, cache).counts == (6,)
    assert indexed == urls
    for file in (tmp_path / "index").iterdir():
        file.write_bytes(b"PK\x03\x04 broken")
    assert build_index(urls, cache).counts == (6,)
    assert indexed == urls * 2


def test_a_cache_of_the_version_that_missed_zeros_inside_a_tar_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_shards(tmp_path / "shards", [6]) / "00000.tar"
    first, _, last = (index_shard(str(path)).byte_range(sample) for sample in (2, 3, 4))
    content = path.read_bytes()
    path.write_bytes(content[: first.start] + bytes(last.start - first.start) + content[last.start :])
    with monkeypatch.context() as patch:
        patch.setattr(indexing, "VERSION", 2)
        patch.setattr(indexing, "index_shard", lambda url: dataclasses.replace(index_shard(url), problem=""))
        assert build_index([str(path)], str(tmp_path / "index")).counts == (2,)
    assert not caplog.records
    assert build_index([str(path)], str(tmp_path / "index")).counts == (2,)
    assert "00000.tar: " in caplog.text
    assert "2 samples before the damage used" in caplog.text


def test_index_is_the_same_from_one_process_and_from_several_and_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path, [2, 3, 1, 2, 2, 2, 2, 2, 4])
    urls = [str(folder / f"0000{i}.tar") for i in range(9)]
    single, parallel = build_index(urls), build_index(urls, parallel=True)
    assert single.counts == parallel.counts
    assert single.fingerprint == parallel.fingerprint
    assert [single.byte_range(n) for n in range(20)] == [parallel.byte_range(n) for n in range(20)]
    monkeypatch.setattr(indexing, "PART", 4)
    monkeypatch.setattr(remote, "WAITING", 2)
    assert [build_index(urls).byte_range(n) for n in range(20)] == [single.byte_range(n) for n in range(20)]


def test_index_of_a_remote_shard_equals_that_of_a_local_one(tmp_path: Path) -> None:
    path = write_shards(tmp_path, [4]) / "00000.tar"
    fsspec.filesystem("memory").pipe("/indexed/00000.tar", path.read_bytes())
    remote, local = index_shard("memory:///indexed/00000.tar"), index_shard(str(path))
    assert [remote.byte_range(n)[1:] for n in range(4)] == [local.byte_range(n)[1:] for n in range(4)]


def test_a_tar_that_shrinks_while_it_is_indexed_is_a_user_error(tmp_path: Path) -> None:
    path = write_shards(tmp_path, [60]) / "00000.tar"
    with ShardFile(str(path)) as file:
        assert len(file.read_at(0, 512)) == 512
        os.truncate(path, 1000)
        with pytest.raises(UserError, match=r"00000\.tar became shorter while it was indexed"):
            file.read_at(file.size - 2048, 512)


def test_a_killed_process_of_the_index_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "load_or_scan", end_process)
    with pytest.raises(UserError, match="a process that indexes shards was killed"):
        build_index(list_shards(str(write_shards(tmp_path, [1] * 9))), parallel=True)


def end_process(facts: object, folder: str) -> None:
    os._exit(9)
