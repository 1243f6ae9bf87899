"""The statistics of an output, from the summaries of its finished shards; nothing is written."""

from dataclasses import dataclass

from common.errors import UserError
from pipeline.report.collect import collect
from pipeline.report.stats import make_stats
from pipeline.summary.totals import Totals
from pipeline.write.pending import check_nothing_pending
from pipeline.write.store import Store
from schemas.stats import Statistics


@dataclass(frozen=True)
class Contents:
    """An output, its statistics, and the totals that they come from, with the counts of all texts that are kept."""

    output: str
    stats: Statistics
    totals: Totals


def read_contents(output: str) -> Contents:
    """Count the shards of an output, with a progress bar on a terminal. Raises UserError without a finished shard.

    Also raises it while a takedown has not finished.
    """
    store = Store(output)
    check_nothing_pending(store)
    try:
        part = collect(store)
        stats = make_stats(store, part)
    except ValueError as error:
        raise UserError(f"{output}: {error}; check it with `python -m pipeline.verify {output}`") from error
    return Contents(output, stats, part.summary.totals)
