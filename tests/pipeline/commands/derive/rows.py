"""Contents of finished outputs, for tests of the commands that follow the job."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.output.ledger import read_manifests
from pipeline.output.store import Store
from schemas.manifest import Manifest


def rows_of(output: Path) -> list[dict[str, Any]]:
    """All rows of arrow/, in the order of the shards."""
    tables = [pa.ipc.open_file(str(path)).read_all() for path in sorted((output / "arrow").glob("*.arrow"))]
    return [row for table in tables for row in table.to_pylist()]


def manifests_of(output: Path) -> list[Manifest]:
    """The manifests of an output."""
    return read_manifests(Store(str(output)))


def stats_of(output: Path) -> dict[str, Any]:
    """The content of stats.json."""
    found: dict[str, Any] = json.loads((output / "stats.json").read_bytes())
    return found
