"""The statistics of an output, counted from its finished shards; nothing is written."""

import sys
from dataclasses import dataclass

from tqdm import tqdm

from common.errors import UserError
from pipeline.report.shards import check_finished, read_manifests
from pipeline.report.stats import collect_stats, count_shards, sum_rows
from pipeline.report.totals import Totals
from pipeline.write.attempts import group_attempts
from pipeline.write.failed import read_failed
from pipeline.write.store import Store
from schemas.stats import Statistics


@dataclass(frozen=True)
class Contents:
    """An output, its statistics, and the running totals that they come from, with the counts of all texts."""

    output: str
    stats: Statistics
    totals: Totals


def read_contents(output: str) -> Contents:
    """Count the shards of an output, with a progress bar on a terminal. Raises UserError without a finished shard."""
    store = Store(output)
    manifests = read_manifests(store)
    check_finished(store, manifests)
    failed = read_failed(store, [manifest["shard"] for manifest in manifests])
    try:
        rows = sum_rows(manifests, failed)
        with tqdm(group_attempts(manifests), desc=output[-40:], unit=" shards", disable=not sys.stderr.isatty()) as bar:
            totals = count_shards(store, bar)
    except ValueError as error:
        raise UserError(f"{output}: {error}; check it with `python -m pipeline.verify {output}`") from error
    return Contents(output, collect_stats(store, manifests, rows, totals), totals)
