"""Look after the shards that workers have reported as finished and that are not in the output.

A worker may see another folder at the path of the output, such as one whose disk is not mounted there.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from common.errors import UserError
from pipeline.compute import Failures, record_failed
from pipeline.config import PipelineConfig
from pipeline.read.types import ShardPlan
from pipeline.resume.finished import find_missing
from pipeline.write.failed import failed_shard
from pipeline.write.store import Store
from schemas.stats import Statistics

logger = logging.getLogger("hypergrit")


def settle_missing(
    plans: Sequence[ShardPlan],
    config: PipelineConfig,
    output: Store,
    failures: Failures,
    compute: Callable[[Sequence[ShardPlan]], int],
) -> int:
    """Compute the shards that are neither in the output nor failed once more, and record as failed what is missing then.

    Returns the number of shards that failed. Raises UserError above `ray.max_failed_shards`.
    """
    missing = find_lost(output, plans, failures)
    if not missing:
        return 0
    logger.warning(
        "%d shards are not in the output %s although they were written, on %s: look if it is mounted there; computed again",
        len(missing), output.root, describe_hosts(missing, failures),
    )  # fmt: skip
    n_failed = compute(missing)
    for plan in find_lost(output, missing, failures):
        host = failures.hosts.get(plan.index) or "an unknown host"
        error = f"written on {host}, but not in the output {output.root}; look if it is mounted there"
        record_failed(output, failed_shard(plan, "write", error, "", attempts=2), failures, config)
        n_failed += 1
    return n_failed


def find_lost(output: Store, plans: Sequence[ShardPlan], failures: Failures) -> list[ShardPlan]:
    """Return the plans without a manifest whose shards have not failed in this job."""
    return [plan for plan in find_missing(output, plans) if plan.index not in failures.failed]


def describe_hosts(plans: Sequence[ShardPlan], failures: Failures) -> str:
    """Name the hosts that wrote these shards, with the numbers of shards: `node7 (12)`."""
    counts = Counter(failures.hosts.get(plan.index) or "an unknown host" for plan in plans)
    return ", ".join(f"{host} ({n})" for host, n in counts.most_common())


def check_rows(stats: Statistics, plans: Sequence[ShardPlan], output: Store) -> None:
    """Raise UserError if the rows of the shards, read and unfinished, are not those that were planned."""
    planned, found = sum(plan.n_rows for plan in plans), stats["rows"]["read"]
    if found != planned:
        raise UserError(
            f"the output {output.root} accounts for {found} rows, but {planned} were planned; run the same command again, "
            "which computes the missing shards"
        )
