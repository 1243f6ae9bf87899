"""arrow/: every input row with the columns of the last stage."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.config import WriteConfig
from pipeline.output.ledger import read_batches
from pipeline.output.store import Store
from pipeline.output.write.stage import write_shard
from schemas.rows import OPTIONAL, VERSION
from schemas.table import set_column
from tests.pipeline.output.write.shards import PROVENANCE, plan, rows, table


def read(output: Path) -> pa.Table:
    with pa.memory_map(str(output / "arrow/00001.arrow")) as source:
        return pa.ipc.open_file(source).read_all()


@pytest.mark.parametrize("image_bytes", [True, False])
def test_every_row_is_written_and_images_are_optional(tmp_path: Path, image_bytes: bool) -> None:
    write_shard(table(), plan(), WriteConfig(formats=("arrow",), image_bytes=image_bytes), str(tmp_path), PROVENANCE)
    found = read(tmp_path)
    written = table([row if image_bytes else row | {"image": None} for row in rows()]).drop_columns(list(OPTIONAL))
    assert found.schema.equals(written.schema)
    assert found.to_pylist() == written.to_pylist()


def test_a_column_that_only_some_jobs_fill_is_in_the_file_if_a_row_has_a_value_and_is_read_in_any_case(
    tmp_path: Path,
) -> None:
    flags = [[n % 2 == 0 for n in range(len(row["boxes"] or ()))] for row in rows()]
    values = [row | {"has_expression": found} for row, found in zip(rows(), flags, strict=True)]
    for folder, given, names in ((tmp_path / "a", rows(), []), (tmp_path / "b", values, ["has_expression"])):
        manifest = write_shard(table(given), plan(), WriteConfig(formats=("arrow",)), str(folder), PROVENANCE)
        assert [name for name in OPTIONAL if name in read(folder).schema.names] == names
        (batch,) = read_batches(Store(str(folder)), manifest, ["key", "has_expression"])
        assert batch["has_expression"].to_pylist() == [row.get("has_expression") for row in given]


def test_schema_metadata_has_version_and_provenance(tmp_path: Path) -> None:
    write_shard(table(), plan(), WriteConfig(formats=("arrow",)), str(tmp_path), PROVENANCE)
    metadata = read(tmp_path).schema.metadata
    assert metadata[b"hypergrit_schema"].decode() == VERSION
    assert json.loads(metadata[b"hypergrit_provenance"]) == PROVENANCE


def test_bytes_do_not_depend_on_chunks_or_on_values_under_nulls(tmp_path: Path) -> None:
    single_chunk = table()
    validity = pa.py_buffer(bytes([0b1101]))
    values = pa.array([300, -7, 300, 300], pa.int32()).buffers()[1]  # -7 is under the null of the dropped row
    hidden_value = set_column(single_chunk, "width", pa.Array.from_buffers(pa.int32(), 4, [validity, values]))
    two_chunks = pa.concat_tables([hidden_value.slice(0, 1), hidden_value.slice(1)])
    for name, variant in (("a", single_chunk), ("b", two_chunks)):
        write_shard(variant, plan(), WriteConfig(formats=("arrow",)), str(tmp_path / name), PROVENANCE)
    assert (tmp_path / "a/arrow/00001.arrow").read_bytes() == (tmp_path / "b/arrow/00001.arrow").read_bytes()
