"""Tars, manifests, indexes and cached features of strangers: bad samples are counted, and all else is a message."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.layouts import read_sample
from hypergrit_common.samples import MAX_SAMPLE_BYTES, BadSample
from hypergrit_common.shards import list_shards
from pipeline.config import WriteConfig
from pipeline.output.write.stage import write_shard
from tests.pipeline.output.write.shards import PROVENANCE, kept_row, plan, table
from tests.trainer.data.samples import grit_files, tar_bytes, train_files
from trainer.data.features import open_shard
from trainer.data.index import index_shard
from trainer.data.indexing import build_index
from trainer.data.shards import ByteRangeReader

BOXES = frozenset({"boxes"})


@pytest.mark.parametrize("count", ["²", "①", "-1", "1e3", "9" * 5000, "\x00", ""])
def test_a_number_of_boxes_that_is_none_is_a_bad_sample(count: str) -> None:
    data = tar_bytes([("key", {**train_files(1), "numparents.txt": count.encode()})])
    with pytest.raises(BadSample, match="instead of a number below 10000"):
        read_sample(data, "train", BOXES)


@pytest.mark.parametrize(
    "row", [{}, {"a": 1}, None, 7, "abcdef", [[]] * 6, [0, 5, float("nan"), 0, 1, 1], [10**400] * 6]
)
def test_a_box_of_any_form_is_a_bad_sample(row: Any) -> None:
    with pytest.raises(BadSample, match="bad_json"):
        read_sample(tar_bytes([("key", grit_files(1, noun_chunks=[row]))]), "grit", BOXES)


def test_a_sample_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    """The tar is sparse on the disk; all readers of an index take their bytes from it."""
    good = tar_bytes([("a", train_files(1)), ("b", train_files(2))])
    header = bytearray(tar_bytes([("c", {"jpg": b""})])[:512])
    header[124:136] = b"%011o\0" % (40 * MAX_SAMPLE_BYTES)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with (tmp_path / "0.tar").open("wb") as file:
        file.write(header)
        file.seek(40 * MAX_SAMPLE_BYTES, os.SEEK_CUR)
        file.write(good)
    index = build_index([str(tmp_path / "0.tar")])
    assert index.n_samples == 3
    for reach in (index.byte_range(0), index.whole_range(0)):
        data = ByteRangeReader().read([reach])[0]
        assert MAX_SAMPLE_BYTES < len(data) <= MAX_SAMPLE_BYTES + 512
        with pytest.raises(BadSample, match="too_large"):
            read_sample(data, "pairs", frozenset())
    assert read_sample(ByteRangeReader().read([index.byte_range(2)])[0], "train", BOXES).caption == "cat 2"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    write_shard(table([kept_row(0), kept_row(1)]), plan(0, 2), WriteConfig(), str(tmp_path / "out"), PROVENANCE)
    return tmp_path / "out"


def change_manifest(output: Path, edit: Callable[[Any], object]) -> None:
    path = output / "_manifests/00000.json"
    content = json.loads(path.read_text())
    edit(content["files"])
    path.write_text(json.dumps(content))


def assert_read_from_headers(output: Path) -> None:
    urls = list_shards(str(output / "train"))
    index, expected = build_index(urls, needs=BOXES), index_shard(urls[0])
    assert [index.byte_range(i) for i in range(2)] == [expected.byte_range(i) for i in range(2)]


@pytest.mark.parametrize("facts", ["sha256", ["sha256"], 7, {"bytes": "7", "sha256": "x"}, {"bytes": 7}])
def test_an_entry_of_a_manifest_that_is_no_size_and_hash_is_ignored(output: Path, facts: Any) -> None:
    change_manifest(output, lambda files: files.update(dict.fromkeys(files, facts)))
    assert_read_from_headers(output)


@pytest.mark.parametrize("size", [2**40, 2**62, 2**80, -5])
def test_no_memory_is_taken_for_the_claimed_size_of_an_index(
    output: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    change_manifest(output, lambda files: files["_index/00000.arrow"].update(bytes=size, sha256="0" * 64))
    assert_read_from_headers(output)
    assert "the shard is indexed from its headers" in caplog.text


def test_an_index_with_other_columns_is_replaced_by_the_headers(output: Path) -> None:
    path = output / "_index/00000.arrow"
    with pa.ipc.open_file(pa.BufferReader(path.read_bytes())) as reader:
        whole = reader.read_all()
    others = [
        pa.nulls(len(whole)),
        pa.array([{"name": "x"}] * len(whole)),
        pa.array([[7]] * len(whole)),
        pa.array(["x"] * len(whole)),
    ]
    for column in ("offset", "size", "members"):
        for other in others:
            changed = whole.set_column(whole.schema.get_field_index(column), column, other)
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, changed.schema) as file:
                file.write_table(changed)
            facts = {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            change_manifest(output, lambda files, facts=facts: files.update({"_index/00000.arrow": facts}))
            assert_read_from_headers(output)


def test_features_with_other_columns_are_a_message(tmp_path: Path) -> None:
    towers = {name: {"kwargs": {"width": 1}} for name in ("image", "text")}
    record = {"settings": {"views": 1, "tokens": False, "patches": False}, "training": {"model": towers}}
    good = {
        "key": pa.array(["0"]), "caption": pa.array(["a"]), "phrase": pa.array([["a"]]), "equal": pa.array([[True]]),
        "label": pa.array([["a"]]), "depth": pa.array([[0]], pa.list_(pa.int16())),
        "image": pa.array([[1.0]], pa.list_(pa.float16(), 1)), "text": pa.array([[1.0]], pa.list_(pa.float16(), 1)),
    }  # fmt: skip
    good |= {name: pa.array([[[1.0]]], pa.list_(good["text"].type)) for name in ("box_image", "box_text", "label_text")}
    path = str(tmp_path / "0.arrow")

    def opened(columns: dict[str, pa.Array]) -> int:
        batch = pa.record_batch(columns)
        fields = [not_null(field) for field in batch.schema]
        batch = pa.record_batch([batch[field.name].cast(field.type) for field in fields], schema=pa.schema(fields))
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as file:
            file.write_batch(batch)
        return open_shard(path, record).table.num_rows

    assert opened(good) == 1
    assert opened({name: column for name, column in good.items() if not name.startswith(("label", "depth"))}) == 1
    for name in good.keys() - {"label", "depth", "label_text"}:
        for other in ({}, {name: pa.array([None], good[name].type)}, {name: pa.array([7])}, {name: pa.array([["x"]])}):
            if good[name].type == next((column.type for column in other.values() if column.null_count == 0), None):
                continue
            with pytest.raises(UserError, match="cannot be read"):
                opened({key: column for key, column in good.items() if key != name} | other)


def not_null(field: pa.Field) -> pa.Field:
    """A field whose items are not null, as the pipeline declares them."""

    def kind(given: pa.DataType) -> pa.DataType:
        if pa.types.is_fixed_size_list(given):
            return pa.list_(pa.field("item", kind(given.value_type), nullable=False), given.list_size)
        if pa.types.is_list(given):
            return pa.list_(pa.field("item", kind(given.value_type), nullable=False))
        return given

    return pa.field(field.name, kind(field.type))
