"""Count a finished shard, with the attempts of pipeline.retry at its rows, for the report."""

from collections.abc import Iterable, Sequence

import pyarrow as pa

from pipeline.summary.places import Chosen
from pipeline.summary.rows import RowCounts
from pipeline.summary.summary import Summary
from pipeline.summary.totals import COLUMNS
from pipeline.write.arrow import BATCH_ROWS
from pipeline.write.attempts import group_attempts, net_counts
from pipeline.write.samples import Row
from schemas.files import FILES
from schemas.manifest import Manifest
from schemas.rows import SCORED
from schemas.stats import Places


def summarize(attempts: Sequence[Manifest], batches: Iterable[pa.RecordBatch]) -> Summary:
    """Return the summary of the attempts at a shard, the job's first, whose rows with their last results are `batches`.

    A shard without arrow/ has no batches, and contributes only the counts of its manifest. Raises ValueError if the rows
    and the manifests disagree.
    """
    summary = Summary(rows=RowCounts(map(net_counts, attempts)), chosen=choose(attempts))
    for manifest in attempts:
        for name, facts in manifest["files"].items():
            if (kind := name.partition("/")[0]) in FILES:
                summary.n_bytes[kind] += facts["bytes"]
    if "arrow" not in attempts[0]["formats"]:
        summary.without_rows = len(attempts)
        summary.totals.add_manifest(attempts[0])
        return summary
    totals, has_rows = summary.totals, False
    for batch in batches:
        totals.add(batch)
        has_rows = True
    found, recorded = (totals.kept, dict(totals.drops)), (summary.rows.sums["kept"], +summary.rows.dropped)
    if has_rows and found != recorded:
        raise ValueError(
            f"shard {attempts[0]['shard']}: the counts of its rows and of its manifest disagree: {found}, {recorded}"
        )
    return summary


def choose(attempts: Sequence[Manifest]) -> Chosen:
    """Return the attempts at a shard as places for pictures and examples."""
    chosen = Chosen()
    chosen.add_kept(manifest["shard"] for manifest in attempts if manifest["counts"]["kept"])
    for cause, n in RowCounts(map(net_counts, attempts)).dropped.items():
        if n > 0:
            chosen.add_dropped(cause, [attempts[0]["shard"]])
    return chosen


def batches_of(rows: Sequence[Row]) -> Iterable[pa.RecordBatch]:
    """Yield rows of a SCORED table as batches with the columns that are counted."""
    schema = pa.schema([SCORED.field(name) for name in COLUMNS])
    for first in range(0, len(rows), BATCH_ROWS):
        yield pa.RecordBatch.from_pylist(list(rows[first : first + BATCH_ROWS]), schema=schema)


def find_places(manifests: Iterable[Manifest]) -> Places:
    """Return places for pictures and examples among finished shards whose statistics do not name any."""
    chosen = Chosen()
    for attempts in group_attempts(manifests):
        chosen.merge(choose(attempts))
    return chosen.to_json()
