"""arrow/: every input row, as the last stage left it."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.write.config import WriteConfig
from pipeline.write.stage import write_shard
from schemas.rows import SCORED, VERSION
from schemas.table import set_column
from tests.pipeline.write.shards import PROVENANCE, plan, rows, table


def read(output: Path) -> pa.Table:
    with pa.memory_map(str(output / "arrow/00001.arrow")) as source:
        return pa.ipc.open_file(source).read_all()


@pytest.mark.parametrize("image_bytes", [True, False])
def test_every_row_comes_back_and_images_are_an_option(tmp_path: Path, image_bytes: bool) -> None:
    write_shard(table(), plan(), WriteConfig(formats=("arrow",), image_bytes=image_bytes), str(tmp_path), PROVENANCE)
    found = read(tmp_path)
    assert found.schema.equals(SCORED)
    expected = [row if image_bytes else row | {"image": None} for row in rows()]
    assert found.to_pylist() == table(expected).to_pylist()


def test_the_schemas_metadata_says_what_made_the_file(tmp_path: Path) -> None:
    write_shard(table(), plan(), WriteConfig(formats=("arrow",)), str(tmp_path), PROVENANCE)
    metadata = read(tmp_path).schema.metadata
    assert metadata[b"hypergrit_schema"].decode() == VERSION
    assert json.loads(metadata[b"hypergrit_provenance"]) == PROVENANCE


def test_neither_chunks_nor_what_lies_under_nulls_shows_in_the_bytes(tmp_path: Path) -> None:
    whole = table()
    validity = pa.py_buffer(bytes([0b1101]))
    values = pa.array([300, -7, 300, 300], pa.int32()).buffers()[1]  # -7 lies under the null of the dropped row
    odd = set_column(whole, "width", pa.Array.from_buffers(pa.int32(), 4, [validity, values]))
    cut = pa.concat_tables([odd.slice(0, 1), odd.slice(1)])
    for name, version in (("a", whole), ("b", cut)):
        write_shard(version, plan(), WriteConfig(formats=("arrow",)), str(tmp_path / name), PROVENANCE)
    assert (tmp_path / "a/arrow/00001.arrow").read_bytes() == (tmp_path / "b/arrow/00001.arrow").read_bytes()
