"""The summary of a shard, computed from arrow/ where the worker that wrote the shard has left none."""

import hashlib
from collections.abc import Mapping, Sequence

from pipeline.report.attempts import read_latest
from pipeline.summary.summary import Summary, SummaryFile
from pipeline.summary.totals import COLUMNS
from pipeline.write.manifest import manifest_hash
from pipeline.write.store import Store
from pipeline.write.summary import summarize
from schemas.files import SUMMARY_FILE
from schemas.manifest import Manifest


def count_shard(store: Store, attempts: Sequence[Manifest]) -> Summary:
    """Count the rows of the attempts at a shard, the job's first; of a row, the last result counts.

    Raises UserError if a file is damaged, and ValueError if the rows of a shard and its manifests disagree.
    """
    has_rows = "arrow" in attempts[0]["formats"]
    return summarize(attempts, read_latest(store, attempts, COLUMNS) if has_rows else ())


def write_summary(store: Store, attempts: Sequence[Manifest], stamps: Mapping[int, str] | None = None) -> Summary:
    """Count a shard, and write its summary, under the index of the last attempt. Raises like `count_shard`.

    `stamps` are the SHA-256 of the files of the manifests, of which an earlier version may have written another form.
    """
    summary = count_shard(store, attempts)
    hashes = {manifest["shard"]: manifest_hash(manifest) for manifest in attempts} if stamps is None else stamps
    store.write_bytes(store.file(SUMMARY_FILE, attempts[-1]["shard"]), SummaryFile(hashes, summary).to_bytes())
    return summary


def stamp_of(content: bytes) -> str:
    """Return the hash of the file of a manifest by which its summary knows it."""
    return hashlib.sha256(content).hexdigest()
