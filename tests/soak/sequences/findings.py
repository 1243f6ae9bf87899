"""The content of an output: its shards with their files and rows, and traces of rows in any file of a folder."""

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.output.manifest import parse_manifest
from tests.soak.sequences.input import N_ROWS, TWINS, colour, sha256_of, word

IMAGES = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n|RIFF....WEBP", re.DOTALL)
DATA_URI = re.compile(rb"base64,([A-Za-z0-9+/=]+)")
TOLERANCE = 22


@dataclass
class Shard:
    """A finished shard: what its manifest says of its files, and what they are; its rows by key, if they can be read."""

    manifest: Any
    digests: dict[str, str]
    wrong: list[str]
    rows: dict[str, Any] = field(default_factory=dict)


def digest(path: Path) -> str:
    """The SHA-256 of a file, "" if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def shards_of(output: Path) -> dict[int, Shard]:
    """The finished shards of an output by index; one whose manifest cannot be read has none."""
    found = {}
    for path in sorted((output / "_manifests").rglob("*.json")):
        manifest = parse_manifest(path.read_bytes())
        if manifest is None:
            continue
        digests = {name: digest(output / name) for name in manifest["files"]}
        wrong = [name for name, facts in manifest["files"].items() if digests[name] != facts["sha256"]]
        found[int(path.stem)] = Shard(manifest, digests, wrong, {} if wrong else rows_of(output, manifest))
    return found


def rows_of(output: Path, manifest: Any) -> dict[str, Any]:
    """The rows of a shard by key, with the `images` of train/ and grit/; without arrow/ nothing."""
    names = {name.partition("/")[0] + Path(name).suffix: output / name for name in manifest["files"]}
    if "arrow.arrow" not in names:
        return {}
    with pa.ipc.open_file(names["arrow.arrow"]) as reader:
        rows = {row["key"]: row for row in reader.read_all().to_pylist()}
    assert len(rows) == manifest["counts"]["read"], "a key is there twice"
    for kind in ("train.tar", "grit.tar"):
        for key, image in (images_of(names[kind]) if kind in names else {}).items():
            rows[key].setdefault("images", {})[kind] = image
    assert sum(row["status"] == "kept" for row in rows.values()) == manifest["counts"]["kept"]
    return rows


def images_of(path: Path) -> dict[str, bytes]:
    """The pictures of a tar by key."""
    with tarfile.open(path) as tar:
        return {item.name[:12]: tar.extractfile(item).read() for item in tar if item.name[12:] == ".jpg"}  # type: ignore[union-attr]


def traces(folders: list[Path], rows: set[int]) -> list[str]:
    """The places of words, hashes or pictures of these rows in the files of some folders."""
    rest = {row for row in range(N_ROWS) if row not in rows}
    others = {row for row in rest if row not in TWINS} | ({TWINS[0]} if rest & {*TWINS} else set())
    pictures = {TWINS[0] if row in TWINS else row for row in rows} - others
    texts = {row: [word(row).encode(), *([sha256_of(row).encode()] if is_alone(row, rest) else [])] for row in rows}
    found = []
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        for name, data in contents(path):
            found += [
                f"{name}: text of row {row}" for row, words in texts.items() if any(text in data for text in words)
            ]
            found += [f"{name}: picture of row {row}" for row in sorted(pictures & set(pictures_in(data)))]
    return found


def is_alone(row: int, rest: set[int]) -> bool:
    return row not in TWINS or not rest & {*TWINS}


def contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """The bytes of a file, and those of its parts that are compressed or encoded."""
    data = path.read_bytes()
    yield str(path), data
    parts = path.name.split(".")
    try:
        if "parquet" in parts:
            yield f"{path} (columns)", cells(pq.read_table(io.BytesIO(data)))
        elif "arrow" in parts:
            with pa.ipc.open_file(io.BytesIO(data)) as reader:
                yield f"{path} (columns)", cells(reader.read_all())
        elif "zst" in parts:
            yield f"{path} (content)", pa.CompressedInputStream(io.BytesIO(data), "zstd").read()
    except (pa.ArrowException, OSError, ValueError):
        pass  # a damaged file; what can be read of it was read
    import base64

    for encoded in DATA_URI.findall(data):
        yield f"{path} (picture)", base64.b64decode(encoded)


def cells(table: pa.Table) -> bytes:
    """All values of a table."""
    texts = [repr(row).encode() for row in table.to_pylist()]
    binary = [name for name in table.schema.names if pa.types.is_binary(table.schema.field(name).type)]
    return b"\n".join([*texts, *(cell for name in binary for cell in table[name].to_pylist() if cell)])


def pictures_in(data: bytes) -> Iterator[int]:
    """The rows whose colours pictures in some bytes have."""
    for place in IMAGES.finditer(data):
        image = cv2.imdecode(np.frombuffer(data, np.uint8, offset=place.start()), cv2.IMREAD_COLOR)
        if image is not None:
            mean = image.reshape(-1, 3).mean(0)[::-1]
            for row in range(N_ROWS):
                if np.abs(mean - np.array(colour(row))).max() < TOLERANCE:
                    yield TWINS[0] if row in TWINS else row


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if it is missing or damaged."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
