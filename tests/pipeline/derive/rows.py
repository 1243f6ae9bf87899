"""Rows of finished outputs, and copies of them, for tests of the commands that follow the job."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.report.shards import read_manifests
from pipeline.write.manifest import plan_from_json
from pipeline.write.stage import write_shard
from pipeline.write.store import Store
from schemas.manifest import Manifest
from schemas.rows import SCORED
from tests.pipeline.jobs import hash_output

HOSTS = ("img.example.org", "cdn.example.net", "example.com")
"""Hosts of the URLs that `with_urls` writes, in turn."""


def rows_of(output: Path) -> list[dict[str, Any]]:
    """All rows of arrow/, in the order of the shards."""
    tables = [pa.ipc.open_file(str(path)).read_all() for path in sorted((output / "arrow").glob("*.arrow"))]
    return [row for table in tables for row in table.to_pylist()]


def manifests_of(output: Path) -> list[Manifest]:
    """The manifests of an output."""
    return read_manifests(Store(str(output)))


def with_urls(source: Path, output: Path, formats: tuple[str, ...]) -> None:
    """Copy an output and write its shards in these formats, with a URL in each row."""
    from pipeline.config import PipelineConfig
    from pipeline.derive.settings import read_config
    from pipeline.derive.source import Source, read_table

    found = Source(str(source))
    config: PipelineConfig = read_config(found.store, [f"formats=[{','.join(formats)}]"])
    output.mkdir(parents=True)
    shutil.copy(source / "config.yaml", output)
    for index, manifest in found.manifests.items():
        rows = read_table(str(source), found.shard(index)).to_pylist()
        for row in rows:
            row["url"] = f"http://{HOSTS[int(row['key']) % 3]}/{int(row['key'])}.jpg"
        table = pa.Table.from_pylist(rows, schema=SCORED)
        write_shard(table, plan_from_json(manifest["plan"]), config.write, str(output), manifest["provenance"])


def hashes_of_shard(output: Path, index: int) -> dict[str, str]:
    """SHA-256 by name of the files of one shard."""
    return {name: digest for name, digest in hash_output(output).items() if f"/{index:05d}." in name}


def stats_of(output: Path) -> dict[str, Any]:
    """The content of stats.json."""
    found: dict[str, Any] = json.loads((output / "stats.json").read_bytes())
    return found
