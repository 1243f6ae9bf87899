"""The index of a shard names the bytes that tarfile finds, and is committed with the shard."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.config import WriteConfig
from pipeline.output.ledger import image_places
from pipeline.output.store import Store
from pipeline.output.write.stage import write_shard
from schemas.files import INDEX
from tests.pipeline.commands.verify.damage import flip
from tests.pipeline.output.write.shards import PROVENANCE, dropped_row, kept_row, plan, rows, table

INDEX_PATH = "_index/00001.arrow"


def read(folder: Path) -> list[dict[str, Any]]:
    found = pa.ipc.open_file(folder / INDEX_PATH).read_all()
    assert found.schema.equals(INDEX)
    return list(found.to_pylist())


@pytest.mark.parametrize("formats", [("train", "grit", "arrow"), ("grit",), ("train",)])
def test_places_are_those_that_tarfile_finds(tmp_path: Path, formats: tuple[str, ...]) -> None:
    long_key = [*rows()[:3], kept_row(13) | {"key": "k" * 120}]  # pax headers come before its members
    manifest = write_shard(table(long_key), plan(), WriteConfig(formats=formats), str(tmp_path), PROVENANCE)
    samples = read(tmp_path)
    assert {sample["format"] for sample in samples} == set(formats) - {"arrow"}
    assert manifest["files"][INDEX_PATH]["rows"] == len(samples)
    for kind in set(formats) - {"arrow"}:
        path = tmp_path / kind / "00001.tar"
        data = path.read_bytes()
        with tarfile.open(path) as tar:
            expected = [(item.name, item.offset, item.offset_data, item.size) for item in tar]
        found = [sample for sample in samples if sample["format"] == kind]
        members = [(f"{s['key']}.{m['name']}", m["offset"], m["size"]) for s in found for m in s["members"]]
        assert members == [(name, offset, size) for name, _, offset, size in expected]
        starts = [sample["offset"] for sample in found]
        assert starts == [next(o for name, o, _, _ in expected if name.startswith(s["key"])) for s in found]
        assert [s["offset"] + s["size"] for s in found] == [*starts[1:], data.rstrip(b"\0") and last_end(expected)]


def last_end(members: list[tuple[str, int, int, int]]) -> int:
    """End of the padded content of the last member."""
    _, _, offset, size = members[-1]
    return offset + -(-size // 512) * 512


def test_shard_without_samples_has_an_empty_index(tmp_path: Path) -> None:
    write_shard(table([dropped_row(10)]), plan(n_rows=1), WriteConfig(), str(tmp_path), PROVENANCE)
    assert read(tmp_path) == []


def test_an_index_that_is_not_that_of_the_manifest_gives_no_places(tmp_path: Path) -> None:
    manifest = write_shard(table(rows()), plan(), WriteConfig(), str(tmp_path), PROVENANCE)
    assert image_places(Store(str(tmp_path)), manifest)
    flip(tmp_path / INDEX_PATH)
    assert image_places(Store(str(tmp_path)), manifest) == {}


def remove_index(folder: Path) -> None:
    """Remove the index, and its entry in the manifest."""
    for path in (folder / "_manifests").iterdir():
        manifest = json.loads(path.read_text())
        del manifest["files"][f"_index/{path.stem}.arrow"]
        path.write_text(json.dumps(manifest))
        (folder / "_index" / f"{path.stem}.arrow").unlink()
