"""Shards of the pipeline as training examples, on disk and at URLs."""

import io
import logging
import tarfile
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hypergrit_common.errors import UserError
from pipeline.config import WriteConfig
from pipeline.output.write.stage import write_shard
from pipeline.stages.ground.glip.text import Prompter
from pipeline.stages.ground.glip.training.shards import (
    Example,
    index_examples,
    list_training_shards,
    load_examples,
    read_captions,
    read_examples,
)
from tests.pipeline.output.write.shards import CAPTION, PROVENANCE, kept_row, plan, table
from tests.pipeline.stages.ground.glip.tiny import TINY


def examples_of(shards: str) -> list[Example]:
    return [load_examples([stored])[0] for url in list_training_shards(shards) for stored in read_examples(url)]


def assert_same(found: list[Example], expected: list[Example]) -> None:
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected, strict=True):
        assert np.array_equal(ours.image, theirs.image)
        assert (ours.caption, ours.phrases, ours.boxes) == (theirs.caption, theirs.phrases, theirs.boxes)


def upload(folder: Path, url: str) -> str:
    """Copy a folder to a store, without files of earlier tests."""
    fs, path = fsspec.url_to_fs(url)
    if fs.exists(path):
        fs.rm(path, recursive=True)
    fs.put(str(folder), path, recursive=True)
    return url


@pytest.mark.parametrize("folder", ["grit", "arrow"])
def test_both_formats_give_the_same_examples(pipeline_output: Path, tiny_prompter: Prompter, folder: str) -> None:
    shards = list_training_shards(str(pipeline_output / folder))
    indexed, skipped = index_examples(shards, tiny_prompter, TINY)
    assert len(indexed) == 4
    assert not skipped
    (example,) = load_examples([indexed[0].stored])
    assert example.image.shape == (200, 300, 3)
    assert example.caption == CAPTION
    named = {CAPTION[slice(*phrase.span)]: len(phrase.boxes) for phrase in example.phrases}
    assert named == {"a small dog": 1, "a café": 1, "🐈 dog": 1}
    assert len(example.phrases) == 4  # the caption contains "a café" twice
    assert len(example.boxes) == 4  # the removed box is not a target
    assert example.boxes[0] == pytest.approx((30, 50, 270, 150))
    assert list(read_captions(shards)) == [CAPTION] * 4


def test_the_grit_files_of_an_output_folder_are_used_if_it_has_any(pipeline_output: Path, tmp_path: Path) -> None:
    names = [url.removeprefix(f"{pipeline_output}/") for url in list_training_shards(str(pipeline_output))]
    assert names == ["grit/00001.tar", "grit/00002.tar"]
    write_shard(table([kept_row(10)]), plan(1, 1), WriteConfig(formats=("arrow",)), str(tmp_path), PROVENANCE)
    assert list_training_shards(str(tmp_path)) == [str(tmp_path / "arrow" / "00001.arrow")]


def test_globs_and_lists_separated_by_commas_are_read_once_each(pipeline_output: Path) -> None:
    first, second = (str(pipeline_output / "grit" / f"0000{i}.tar") for i in (1, 2))
    assert list_training_shards(f"{pipeline_output}/grit/*") == [first, second]  # without the .parquet files
    assert list_training_shards(f"{second}, {first},{pipeline_output}/grit/*1.tar") == [first, second]


@pytest.mark.parametrize("folder", ["grit", "arrow"])
def test_uncommitted_shards_of_a_killed_job_are_skipped_with_a_warning(
    pipeline_output: Path, caplog: pytest.LogCaptureFixture, folder: str
) -> None:
    url = upload(pipeline_output, "memory://killed_job")
    fsspec.filesystem("memory").rm("/killed_job/_manifests/00002.json")
    suffix = {"grit": "tar", "arrow": "arrow"}[folder]
    with caplog.at_level(logging.WARNING):
        assert [found.rpartition("/")[2] for found in list_training_shards(f"{url}/{folder}")] == [f"00001.{suffix}"]
    assert f"00002.{suffix} has no manifest" in caplog.text


@pytest.mark.parametrize("folder", ["grit", "arrow"])
def test_a_url_gives_the_same_examples_as_local_files(pipeline_output: Path, folder: str) -> None:
    url = upload(pipeline_output, f"memory://same_examples_{folder}")
    assert_same(examples_of(f"{url}/{folder}"), examples_of(str(pipeline_output / folder)))


def test_only_the_bytes_of_the_images_are_requested_from_a_remote_tar(
    pipeline_output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = upload(pipeline_output, "memory://ranges")
    stored = [example for shard in list_training_shards(url) for example in read_examples(shard)]
    requests: list[tuple[int, int]] = []
    cat_file = MemoryFileSystem.cat_file

    def record(self: MemoryFileSystem, path: str, *, start: int, end: int) -> bytes:
        requests.append((start, end))
        return cat_file(self, path, start=start, end=end)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", record)
    assert len(load_examples(stored)) == 4
    assert sorted(requests) == sorted((example.position, example.position + example.n_bytes) for example in stored)


def test_unusable_shards_are_named(tmp_path: Path, tiny_prompter: Prompter) -> None:
    with pytest.raises(UserError, match=r"^shards: .*/nothing does not exist"):
        list_training_shards(str(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"^shards: .* holds no \*\.tar or \*\.arrow"):
        list_training_shards(str(tmp_path))
    (tmp_path / "rows.parquet").write_bytes(b"")
    with pytest.raises(UserError, match=r"^shards: .*rows\.parquet holds no \*\.tar or \*\.arrow"):
        list_training_shards(str(tmp_path / "rows.parquet"))
    (tmp_path / "cut.tar").write_bytes(b"not a tar")
    (tmp_path / "cut.arrow").write_bytes(b"not an arrow file")
    with pytest.raises(UserError, match=r"cut\.tar is not a shard of the pipeline's grit/"):
        index_examples([str(tmp_path / "cut.tar")], tiny_prompter, TINY)
    with pytest.raises(UserError, match=r"cut\.arrow is not a shard of the pipeline's arrow/"):
        index_examples([str(tmp_path / "cut.arrow")], tiny_prompter, TINY)
    with pytest.raises(UserError, match=r"gone\.tar cannot be read: .*No such file"):
        index_examples([str(tmp_path / "gone.tar")], tiny_prompter, TINY)


def tar_of(json: bytes, end: bytes = bytes(1024)) -> bytes:
    """A sample with this JSON, in a tar that ends with `end`."""
    file = io.BytesIO()
    for name, data in (("0.jpg", b"jpg"), ("0.txt", b"a dog"), ("0.json", json)):
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        file.write(entry.tobuf() + data + bytes(-len(data) % 512))
    return file.getvalue() + end


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (tar_of(b"[" * 100_000), "RecursionError"),
        (tar_of(b'{"height": 1, "width": 1, "caption": "", "noun_chunks": []}', end=b""), "no end-of-archive mark"),
    ],
)
def test_damaged_tars_are_named(tmp_path: Path, tiny_prompter: Prompter, content: bytes, error: str) -> None:
    (tmp_path / "cut.tar").write_bytes(content)
    with pytest.raises(UserError, match=rf"cut\.tar is not a shard .* or is damaged: .*{error}"):
        index_examples([str(tmp_path / "cut.tar")], tiny_prompter, TINY)


def test_arrow_shards_without_images_are_refused(tmp_path: Path, tiny_prompter: Prompter) -> None:
    write_shard(table([kept_row(10)]), plan(1, 1), WriteConfig(formats=("arrow",)), str(tmp_path), PROVENANCE)
    with pytest.raises(UserError, match=r"holds no images"):
        index_examples(list_training_shards(str(tmp_path / "arrow")), tiny_prompter, TINY)


def test_a_damaged_image_is_an_error_that_names_the_shard_and_the_position(pipeline_output: Path) -> None:
    (shard, _) = list_training_shards(str(pipeline_output))
    stored = next(read_examples(shard))._replace(n_bytes=50)
    with pytest.raises(UserError, match=rf"00001\.tar, image at {stored.position}: "):
        load_examples([stored])


def test_examples_without_a_usable_phrase_are_counted_and_skipped(tmp_path: Path, tiny_prompter: Prompter) -> None:
    emoji = kept_row(10) | {"caption": "\U0001f600 " * 20}
    write_shard(table([emoji, kept_row(11)]), plan(1, 2), WriteConfig(formats=("grit",)), str(tmp_path), PROVENANCE)
    indexed, skipped = index_examples(list_training_shards(str(tmp_path)), tiny_prompter, TINY)
    assert (len(indexed), skipped) == (1, {"unknown_words": 1})
