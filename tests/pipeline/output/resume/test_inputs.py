"""The identity of input files."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.output import inputs
from pipeline.output.inputs import identify_files
from pipeline.read.roots import object_version


def identify(path: Path, known: dict[str, inputs.InputFile] | None = None) -> inputs.InputFile:
    (file,) = identify_files([(str(path), path.stat().st_size)], known or {})
    return file


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WHOLE_BYTES": 1000, "HASHED_BLOCKS": {"blocks": (4, 10)}}.items():
        monkeypatch.setattr(inputs, name, value)


def test_a_file_is_hashed_once_and_again_after_a_change_of_its_time(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("one")
    first = identify(path)
    assert first["hash"] == f"sha256:{hashlib.sha256(b'one').hexdigest()}"
    stale = {str(path): {**first, "hash": "kept"}}
    assert identify(path, stale)["hash"] == "kept"  # type: ignore[arg-type]
    os.utime(path, ns=(0, first["mtime_ns"] + 1))
    assert identify(path, stale)["hash"] == first["hash"]  # type: ignore[arg-type]


def test_blocks_of_a_large_file_include_both_ends(tmp_path: Path, large: None) -> None:
    path = tmp_path / "a.csv"
    data = bytearray(range(250)) * 5
    hashes = set()
    for position in (None, 0, 9, 1249, 1240, 418, 600):
        changed = bytearray(data)
        if position is not None:
            changed[position] ^= 1
        path.write_bytes(changed)
        hashes.add(identify(path)["hash"])
        assert identify(path)["hash"].startswith("blocks:")
    assert len(hashes) == 6  # byte 600 is in no block


def test_the_footer_of_a_large_parquet_file_is_hashed(tmp_path: Path, large: None) -> None:
    path = tmp_path / "a.parquet"
    rows = {"url": [f"http://example.org/{i}.jpg" for i in range(500)], "caption": ["a cat"] * 500}
    pq.write_table(pa.table(rows), path)
    footer = identify(path)["footer"]
    rows["caption"][250] = "a dog"
    pq.write_table(pa.table(rows), path)
    assert identify(path)["footer"] != footer


def test_edit_that_restores_size_and_time_of_modification_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("url,caption")
    (known,), facts = identify_files([(str(path), 11)], {}), path.stat()
    path.write_text("url,Caption")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    (found,) = identify_files([(str(path), 11)], {str(path): known})
    assert found["mtime_ns"] == known["mtime_ns"]
    assert found["hash"] != known["hash"]


@pytest.mark.parametrize(
    ("info", "version"),
    [
        ({"Last-Modified": "Sun, 22 Nov 2026 10:00:00 GMT", "size": 3}, "Sun, 22 Nov 2026 10:00:00 GMT"),
        ({"ETag": '"a"', "Last-Modified": "Sun, 22 Nov 2026 10:00:00 GMT"}, "a"),
        ({"Content-MD5": "b", "size": 3}, "b"),
        ({"md5Hash": "c", "updated": "2026"}, "c"),
        ({"size": 3}, ""),
    ],
)
def test_version_of_an_object_is_found_under_the_names_of_each_store(info: dict[str, Any], version: str) -> None:
    assert object_version(info) == version
