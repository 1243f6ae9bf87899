"""Select the rows of a shard to try again, from arrow/ of all attempts before."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from pipeline.report.attempts import Result
from pipeline.report.shards import read_batches
from pipeline.retry.options import is_retried
from pipeline.write.secrets import remove_url_secrets
from pipeline.write.store import Store
from schemas.attempts import attempt_of
from schemas.manifest import Manifest
from schemas.table import Drop, drop_rows, kept_indices, set_column

COLUMNS: Final = ("key", "stage", "reason", "detail", "sha256", "caption_original")
Content = tuple[str, str | None]
"""SHA-256 of the image and caption of the input: rows of a shard with the same content are duplicates."""


@dataclass(frozen=True)
class Ledger:
    """The rows to try again, each with its last result, and the key of the row with each content, by key and content."""

    rows: dict[str, Result] = field(default_factory=dict)
    seen: dict[Content, str] = field(default_factory=dict)


def read_ledger(store: Store, attempts: Sequence[Manifest], reasons: tuple[str, ...]) -> Ledger:
    """Read the rows of all attempts at a shard. Raises UserError if a file is damaged."""
    ledger = Ledger()
    for manifest in attempts:
        attempt = attempt_of(manifest["shard"])
        for batch in read_batches(store, manifest, COLUMNS):
            columns = (batch[name].to_pylist() for name in COLUMNS)
            for key, stage, reason, detail, sha256, caption in zip(*columns, strict=True):
                ledger.rows.pop(key, None)
                if is_retried(reasons, stage, reason, detail):
                    ledger.rows[key] = Result(attempt, stage, reason)
                elif sha256 is not None and stage not in ("read", "download"):  # not a duplicate
                    ledger.seen.setdefault((sha256, caption), key)
    return ledger


def count_rows(output: str, reasons: tuple[str, ...], attempts: Sequence[Manifest]) -> int:
    """Return the number of rows of a shard to try again."""
    return len(read_ledger(Store(output), attempts, reasons).rows)


def drop_seen(table: pa.Table, seen: dict[Content, str]) -> pa.Table:
    """Drop the rows of a DOWNLOADED table that repeat a row of an earlier attempt, as the job does within a shard.

    Its key becomes the detail, also of rows that repeat one of the dropped rows.
    """
    keys, hashes, captions = (table[name].to_pylist() for name in ("key", "sha256", "caption_original"))
    stays: dict[str, str] = {}
    drops: dict[int, Drop] = {}
    for i in kept_indices(table):
        # Compared as it was written: without user names and passwords of URLs.
        caption = remove_url_secrets({"caption_original": captions[i]}, strip_query=False)["caption_original"]
        if hashes[i] is not None and (first := seen.get((hashes[i], caption))):
            drops[i], stays[keys[i]] = Drop("duplicate", first), first
    if not drops:
        return table
    table = drop_rows(table, "download", drops)
    pairs = zip(table["reason"].to_pylist(), table["detail"].to_pylist(), strict=True)
    details = [stays.get(detail, detail) if reason == "duplicate" else detail for reason, detail in pairs]
    return set_column(table, "detail", pa.array(details, pa.string()))
