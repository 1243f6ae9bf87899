"""Hashes of the files of an output: as they are, and without what a new version may change.

`file_hashes` has the bytes of the files of shards. `content_hashes`, which tests/e2e/recorded.json holds, leaves out or
normalises:

- the hash of the settings in the JSON of train/, which is replaced by zeros of the same length;
- the provenance (versions, hashes of settings and models) in the metadata of arrow/, _index/ and the parquet: their
  schemas and values are hashed, not their bytes;
- of the manifests all but plan, counts, formats, `retry`, and the names of the files (their hashes and sizes contain the
  provenance; `hypergrit verify` checks them);
- of stats.json all but the numbers of rows;
- config.yaml, _job.json, _command.json, _takedowns.json, _timings/, _summaries/, _rollup/, report.html:
  times, versions, absolute paths, host names, the package's version.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests.e2e.outputs import counts, read_arrow

FOLDERS: Final = ("train", "grit", "arrow", "_index", "_dropped")
MANIFESTS: Final = "_manifests"
CONFIG_HASH: Final = re.compile(rb'("config_hash": ?")[0-9a-f]{64}(")')
PROVENANCE: Final = b"hypergrit_provenance"
FIELDS: Final = ("plan", "counts", "formats", "retry", "shard", "schema")


def files(output: Path, *folders: str) -> dict[str, Path]:
    """Return the files of shards by their names in the output."""
    paths = [path for folder in folders for path in sorted((output / folder).rglob("*")) if path.is_file()]
    return {str(path.relative_to(output)): path for path in paths}


def file_hashes(output: Path, *folders: str) -> dict[str, str]:
    """Return the SHA-256 of the bytes of all files of shards."""
    found = files(output, *(folders or FOLDERS))
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()}


def content_hashes(output: Path) -> dict[str, str]:
    """Return the SHA-256 of the normalised files of an output."""
    contents = {name: normalised(path) for name, path in files(output, *FOLDERS, MANIFESTS).items()}
    contents["stats.json"] = to_json(counts(output))
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def normalised(path: Path) -> bytes:
    """Return the content of a file of a shard without provenance."""
    if path.suffix == ".tar":
        return CONFIG_HASH.sub(rb"\g<1>" + b"0" * 64 + rb"\g<2>", path.read_bytes())
    if path.suffix == ".arrow":
        return table_bytes(read_arrow(path))
    if path.suffix == ".parquet":
        return table_bytes(pq.read_table(path))
    manifest = json.loads(path.read_bytes())
    return to_json({name: manifest.get(name) for name in FIELDS} | {"files": sorted(manifest["files"])})


def table_bytes(table: pa.Table) -> bytes:
    """Return the schema with its metadata but the provenance, and all values."""
    metadata = {name: value for name, value in (table.schema.metadata or {}).items() if name != PROVENANCE}
    schema = table.schema.remove_metadata().to_string(show_field_metadata=False)
    return repr((schema, sorted(metadata.items()), table.to_pylist())).encode()


def to_json(value: Any) -> bytes:
    """Return JSON with sorted keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1).encode()
