"""Two small shards in all formats, and changes that leave sizes, hashes and manifests in agreement, or not."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.commands.verify import Checker
from pipeline.config import WriteConfig
from pipeline.output.contents import Finding
from pipeline.output.write.stage import write_shard
from tests.pipeline.output.write import shards

FILES = ("arrow/00001.arrow", "grit/00001.parquet", "grit/00001.tar", "train/00001.tar", "_index/00001.arrow")


def write_two(folder: Path, config: WriteConfig | None = None) -> Path:
    """Write shard 1, and shard 2 with other rows and fewer kept ones."""
    config = config or WriteConfig(image_bytes=True)
    other = [shards.kept_row(14) | {"id": "other"}, shards.dropped_row(15), shards.dropped_row(16), shards.kept_row(17)]
    write_shard(shards.table(), shards.plan(1), config, str(folder), shards.PROVENANCE)
    write_shard(shards.table(other), shards.plan(2), config, str(folder), shards.PROVENANCE)
    return folder


def check(output: Path, index: int = 1) -> Finding:
    return Checker(str(output)).check(index)


def problems(output: Path, index: int = 1) -> list[str]:
    return [str(problem) for problem in check(output, index).problems]


def flip(path: Path, at: int | None = None) -> None:
    """Invert the bits of one byte, by default of that in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 0xFF
    path.write_bytes(data)


def flip_behind(path: Path, marker: bytes = b"\xff\xd8\xff") -> None:
    """Flip a bit behind a marker, by default that of a JPEG: a reader does not notice it."""
    data = bytearray(path.read_bytes())
    data[data.index(marker) + 300] ^= 1
    path.write_bytes(data)


def edit_manifest(output: Path, change: Callable[[Any], None], index: int = 1) -> None:
    """Change the JSON of a manifest in place."""
    path = output / f"_manifests/{index:05d}.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def replace(output: Path, name: str, data: bytes) -> None:
    """Replace a file of shard 1, and give its manifest the new size and hash, as a faulty writer would."""
    (output / name).write_bytes(data)
    facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit_manifest(output, lambda manifest: manifest["files"][name].update(facts))


def substitute(output: Path, name: str, old: bytes, new: bytes) -> None:
    """Replace the first occurrence of `old` by `new`, of the same length, as in `replace`."""
    data = (output / name).read_bytes()
    assert len(old) == len(new)
    assert old in data
    replace(output, name, data.replace(old, new, 1))
