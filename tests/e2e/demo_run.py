"""A run of the demo, and the hashes of its shards without the folder in which it ran."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.e2e.commands import succeed
from tests.e2e.hashes import files, to_json
from tests.e2e.outputs import members, read_arrow


def run_demo(folder: Path) -> dict[str, str] | None:
    """Run the demo into a folder. Returns the hashes; None if its port was taken, since the URLs then differ."""
    succeed("demo", "--out", folder, "--cpus", "2")
    rows = pq.read_table(folder / "demo_input" / "pairs.parquet", columns=["url"])["url"].to_pylist()
    if not any(url and ":8931/" in url for url in rows):
        return None
    return demo_hashes(folder / "demo", str(folder))


def demo_hashes(output: Path, folder: str) -> dict[str, str]:
    """Return the SHA-256 of all samples of the tars, and of all rows of the tables, without folder and provenance."""
    contents = {name: content(path, folder) for name, path in files(output, "train", "grit", "arrow").items()}
    rows = json.loads((output / "stats.json").read_text("utf-8"))["rows"]
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    return hashes | {"stats.json": hashlib.sha256(to_json(rows)).hexdigest()}


def content(path: Path, folder: str) -> bytes:
    """Return the members of a tar or the rows of a table."""
    if path.suffix == ".tar":
        return b"".join(f"{name} {len(data)}\n".encode() + data for name, data in without_place(path, folder))
    table = read_arrow(path) if path.suffix == ".arrow" else pq.read_table(path)
    return repr(table.to_pylist()).replace(folder, "").encode()


def without_place(path: Path, folder: str) -> list[tuple[str, bytes]]:
    """Return the members of a tar; in their JSON, without the folder of the input and the hash of the settings."""
    found = []
    for name, data in members(path):
        if name.endswith(".json"):
            value: dict[str, Any] = json.loads(data)
            value.get("provenance", {}).pop("config_hash", None)
            data = to_json(value).replace(folder.encode(), b"")
        found.append((name, data))
    return found
