from pathlib import Path

import fsspec
import pytest
import webdataset

from common.errors import UserError
from tests.trainer.data.samples import train_files, write_shards, write_tar
from trainer.data.index import Index, build_index, find_samples, members
from trainer.data.shards import SpanReader


def keys(index: Index) -> list[str]:
    spans = SpanReader().read([index.span(sample) for sample in range(index.n_samples)])
    return [next(iter(members(span)))[0] for span in spans]


def test_samples_are_those_that_webdataset_groups(tmp_path: Path) -> None:
    samples = [(f"x/{n}.5" if n % 3 else f"{n}", train_files(n)) for n in range(9)]
    path = str(write_tar(tmp_path / "a.tar", samples))
    theirs = list(webdataset.WebDataset(path, shardshuffle=False))
    index = Index([find_samples(path)])
    assert keys(index) == [sample["__key__"] for sample in theirs]
    spans = SpanReader().read([index.span(sample) for sample in range(9)])
    for span, sample in zip(spans, theirs, strict=True):
        files = {name: span[start : start + size] for _, name, start, size in members(span)}
        assert files == {name: value for name, value in sample.items() if not name.startswith("__")}


@pytest.mark.parametrize(("past", "kept"), [(200, 3), (700, 3), (2050, 3)])
def test_samples_before_a_cut_are_used_and_the_shard_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, past: int, kept: int
) -> None:
    folder = write_shards(tmp_path, [5, 5])
    path = folder / "00001.tar"
    path.write_bytes(path.read_bytes()[: int(find_samples(str(path)).bounds[3]) + past])
    index = build_index([str(folder / "00000.tar"), str(path)], "", 0)
    assert index.counts == (5, kept)
    assert keys(index) == [f"{n:04d}" for n in range(5 + kept)]
    assert "00001.tar: cut off" in caplog.text


def test_a_tar_without_its_end_mark_is_named_and_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_shards(tmp_path, [3]) / "00000.tar"
    path.write_bytes(path.read_bytes()[: int(find_samples(str(path)).bounds[-1])])
    assert build_index([str(path)], "", 0).n_samples == 3
    assert "no end mark" in caplog.text


@pytest.mark.parametrize("content", [b"", b"no tar at all" * 100, bytes(10240)])
def test_shards_without_a_sample_are_the_users_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "00000.tar"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"no sample in 1 shards: .*00000\.tar"):
        build_index([str(path)], "", 0)


def test_an_empty_shard_among_others_is_nothing_to_speak_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_shards(tmp_path, [0, 2, 0])
    assert build_index([str(folder / f"0000{i}.tar") for i in range(3)], "", 0).counts == (0, 2, 0)
    assert not caplog.records


def test_an_index_is_kept_until_the_shard_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_shards(tmp_path / "shards", [4])
    urls, cache = [str(folder / "00000.tar")], str(tmp_path / "index")
    assert build_index(urls, cache, 0).counts == (4,)
    walked = []
    monkeypatch.setattr("trainer.data.index.find_samples", lambda url: walked.append(url) or find_samples(url))
    assert build_index(urls, cache, 0).counts == (4,)
    assert not walked
    write_shards(tmp_path / "shards", [6])
    assert build_index(urls, cache, 0).counts == (6,)
    assert walked == urls


def test_a_damaged_file_of_the_index_is_made_again(tmp_path: Path) -> None:
    urls = [str(write_shards(tmp_path / "shards", [4]) / "00000.tar")]
    build_index(urls, str(tmp_path / "index"), 0)
    for file in (tmp_path / "index").iterdir():
        file.write_bytes(b"PK\x03\x04 broken")
    assert build_index(urls, str(tmp_path / "index"), 0).counts == (4,)


def test_ranks_and_workers_find_the_same(tmp_path: Path) -> None:
    folder = write_shards(tmp_path, [2, 3, 1, 2, 2, 2, 2, 2, 4])
    urls = [str(folder / f"0000{i}.tar") for i in range(9)]
    alone, third = build_index(urls, "", 0), build_index(urls, "", 2, rank=2, world_size=4)
    assert alone.counts == third.counts
    assert alone.fingerprint == third.fingerprint
    assert [alone.span(n) for n in range(20)] == [third.span(n) for n in range(20)]


def test_a_remote_shard_has_the_same_index(tmp_path: Path) -> None:
    path = write_shards(tmp_path, [4]) / "00000.tar"
    fsspec.filesystem("memory").pipe("/indexed/00000.tar", path.read_bytes())
    remote, local = find_samples("memory:///indexed/00000.tar"), find_samples(str(path))
    assert remote.bounds.tolist() == local.bounds.tolist()
