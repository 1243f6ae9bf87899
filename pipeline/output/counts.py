"""Count a finished shard for the report."""

from collections.abc import Iterable, Sequence

import pyarrow as pa

from pipeline.output.manifest import CountsError, checked_counts
from pipeline.output.write.arrow import BATCH_ROWS
from pipeline.output.write.samples import Row
from pipeline.summary.totals import COLUMNS, Chosen, RowCounts, Summary
from schemas.files import FILES
from schemas.manifest import Manifest, has_grounder
from schemas.rows import SCORED


def summarize(manifest: Manifest, batches: Iterable[pa.RecordBatch]) -> Summary:
    """Return the summary of a shard with these rows.

    A shard without arrow/ has no batches, and contributes only the counts of its manifest. Raises ValueError if the
    rows and the manifest disagree.
    """
    summary = Summary(rows=RowCounts([checked_counts(manifest)]), chosen=choose(manifest))
    for name, facts in manifest["files"].items():
        if (kind := name.partition("/")[0]) in FILES:
            summary.n_bytes[kind] += facts["bytes"]
    if "arrow" not in manifest["formats"]:
        summary.without_rows = 1
        summary.totals.add_manifest(manifest)
        return summary
    totals, has_rows = summary.totals, False
    for batch in batches:
        totals.add(batch, has_grounder(manifest["provenance"]))
        has_rows = True
    found, recorded = (totals.kept, dict(totals.drops)), (summary.rows.sums["kept"], +summary.rows.dropped)
    if has_rows and found != recorded:
        raise CountsError(manifest, f"the counts of its rows and of its manifest disagree: {found}, {recorded}")
    return summary


def choose(manifest: Manifest) -> Chosen:
    """Return a shard as a place for pictures and examples."""
    chosen = Chosen()
    chosen.add_kept([manifest["shard"]] if manifest["counts"]["kept"] else [])
    for stage, reasons in manifest["counts"]["dropped"].items():
        for reason, n in reasons.items():
            if n:
                chosen.add_dropped((stage, reason), [manifest["shard"]])
    return chosen


def batches_of(rows: Sequence[Row]) -> Iterable[pa.RecordBatch]:
    """Yield rows of a SCORED table as batches with the columns that are counted."""
    schema = pa.schema([SCORED.field(name) for name in COLUMNS])
    for first in range(0, len(rows), BATCH_ROWS):
        yield pa.RecordBatch.from_pylist(list(rows[first : first + BATCH_ROWS]), schema=schema)
