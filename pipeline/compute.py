"""Compute the planned shards with a runner, record those that fail, show the progress."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from common.errors import UserError
from common.text import counted
from pipeline.config import PipelineConfig
from pipeline.faults.fault import Fault, check_limit
from pipeline.lease import Lease
from pipeline.local import compute_local
from pipeline.progress import Result, progress
from pipeline.read.types import ShardPlan
from pipeline.report.background import Rollups
from pipeline.run import Done, Steps
from pipeline.write.failed import failed_indices, write_failed
from pipeline.write.store import Store
from schemas.files import MANIFEST_FILE
from schemas.manifest import FailedShard, Provenance

logger = logging.getLogger("hypergrit")

Runner = Callable[[Sequence[ShardPlan], PipelineConfig, Callable[..., Steps]], Iterator[Result]]
"""Computes the planned shards; yields each once it is committed or has failed."""


@dataclass
class Failures:
    """The faulty rows and failed shards of a job, which its limits count, and the hosts that wrote the other shards."""

    faults: list[Fault] = field(default_factory=list)
    n_failed: int = 0
    failed: set[int] = field(default_factory=set)
    hosts: dict[int, str] = field(default_factory=dict)


def compute(
    plans: Sequence[ShardPlan],
    config: PipelineConfig,
    provenance: Provenance,
    output: Store,
    lease: Lease,
    failures: Failures,
    mates: Sequence[ShardPlan] = (),
) -> int:
    """Compute and commit these shards; return the number of those that failed, which have a record in `_failed/`.

    Shards that failed in an earlier run come last. `config` is that of `with_limits`, for all shards of the job, and
    `failures` those before, to which new ones are added. `mates` are all shards of the job, whose rows may share the
    batches of these. Raises UserError if more than `ray.max_failed_shards` fail or
    the lease is lost, and TooManyFaultsError if more than `max_internal_errors` rows do.
    """
    before, n_before = failed_indices(output), failures.n_failed
    if before:
        plans = sorted(plans, key=lambda plan: (plan.index in before, plan.index))
    make_steps = partial(Steps, config, provenance, lease=lease.token)
    results = lease.guard(pick_runner(config, mates)(plans, config, make_steps))
    with Rollups(output, (plan.index for plan in plans)) as rollups:
        for result in progress(results, sum(plan.n_rows for plan in plans), config):
            if isinstance(result, Done):
                failures.hosts[result.manifest["shard"]] = result.host
                record_faults(failures.faults, result.faults, config)
                rollups.add(result.manifest["shard"])
            else:
                lease.check()  # the record removes the manifest of an earlier run
                record_failed(output, result, failures, config)
                rollups.add(result["shard"])
    return failures.n_failed - n_before


def with_limits(config: PipelineConfig, plans: Sequence[ShardPlan]) -> PipelineConfig:
    """Replace limits that are not set by their defaults, which depend on the number of rows and shards."""
    max_errors, max_failed = config.max_internal_errors, config.ray.max_failed_shards
    if max_errors is None:
        max_errors = max(sum(plan.n_rows for plan in plans) // 100, 100)
    if max_failed is None:
        max_failed = max(len(plans) // 100, 10)
    ray = dataclasses.replace(config.ray, max_failed_shards=max_failed)
    return dataclasses.replace(config, max_internal_errors=max_errors, ray=ray)


def pick_runner(config: PipelineConfig, mates: Sequence[ShardPlan] = ()) -> Runner:
    """The runner of `ray.runner`; Ray is imported only if it is used. On it, the shards share batches with `mates`."""
    if config.ray.runner == "local":
        return compute_local
    from pipeline.on_ray.run import compute_on_ray

    return partial(compute_on_ray, mates=mates)


def record_faults(known: list[Fault], new: Iterable[Fault], config: PipelineConfig) -> None:
    """Add the faults of a shard to those of the job, and log them: the first with its traceback, the others in a line.

    Raises TooManyFaultsError above the limit.
    """
    for fault in new:
        trace = f"\n{fault.traceback}" if fault.traceback and not known else ""
        logger.warning("row %s is dropped as internal_error in %s: %s%s", fault.key, fault.stage, fault.detail, trace)
        known.append(fault)
    check_limit(known, config.max_internal_errors)


def record_failed(output: Store, failed: FailedShard, failures: Failures, config: PipelineConfig) -> None:
    """Count a failed shard, write its record, and log it in one line. Raises UserError above the limit."""
    failures.n_failed += 1
    failures.failed.add(failed["shard"])
    output.remove([output.file(MANIFEST_FILE, failed["shard"])])  # of an earlier run with other settings
    write_failed(output, failed)
    logger.warning(
        "shard %d failed in %s after %s, the others go on: %s",
        failed["shard"], failed["step"], counted(failed["attempts"], "attempt"), failed["error"],
    )  # fmt: skip
    check_failed(
        failures.n_failed,
        failed,
        config,
        "The folder _failed/ of the output holds their errors; finished shards are kept",
    )


def check_failed(n_failed: int, last: FailedShard, config: PipelineConfig, what_is_kept: str) -> None:
    """Raise UserError if `n_failed` shards, of which `last` is the last, are more than `ray.max_failed_shards`."""
    limit = config.ray.max_failed_shards
    if limit is not None and n_failed > limit:
        raise UserError(
            f"{counted(n_failed, 'shard')} failed, more than ray.max_failed_shards={limit}; the last is shard "
            f"{last['shard']}: {last['error']}. {what_is_kept}"
        )
