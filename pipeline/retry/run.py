"""Try rows of a finished output again, shard by shard; the results are new shards beside the old ones."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from functools import partial

from pipeline.compute import check_failed, pick_runner, record_faults, with_limits
from pipeline.config import PipelineConfig, content_hash, with_formats
from pipeline.derive.settings import take_options, take_output
from pipeline.derive.workers import connected
from pipeline.faults.fault import Fault
from pipeline.job import remove_drafts, report_shards
from pipeline.lease import Lease, hold_lease
from pipeline.paths import check_writable
from pipeline.progress import progress
from pipeline.read.types import ShardPlan
from pipeline.resume.finished import Formats, formats_by_hash, formats_of
from pipeline.retry.options import RetryOptions
from pipeline.retry.plan import count_in_shards, finished_groups, plan_job, settings_of_attempt
from pipeline.retry.state import next_attempt, read_state, write_state
from pipeline.retry.steps import RetrySteps
from pipeline.run import Done
from pipeline.write.pending import check_nothing_pending
from pipeline.write.store import Store
from schemas.attempts import index_of
from schemas.job import RetryState
from schemas.manifest import Provenance

logger = logging.getLogger("hypergrit")


def retry(arguments: Sequence[str]) -> int:
    """Make an attempt at the rows of an output, or finish one; return the number of shards that failed. Raises UserError."""
    output, rest = take_output(arguments, "python -m pipeline.retry OUT")
    options, changes = take_options(rest, RetryOptions)
    store = Store(output)
    old, config = settings_of_attempt(store, output, changes)
    check_writable(store)
    with hold_lease(store) as lease:
        check_nothing_pending(store)
        work, provenance = plan_job(store, old)
        groups = {attempts[0]["shard"]: attempts for attempts in finished_groups(store, work, old)}
        indices = {manifest["shard"] for attempts in groups.values() for manifest in attempts}
        last = read_state(store)
        state = next_attempt(last, options, indices)
        left = [attempts for i, attempts in groups.items() if index_of(state["attempt"], i) not in indices]
        with connected(config.ray):
            counts = dict(count_in_shards(store, left, tuple(state["reasons"]), config, lease))
            n_failed = sum(count is None for count in counts.values())
            plans = [attempt_plan(plan, state, n) for plan in work.plans if (n := counts.get(plan.index))]
            logger.info("attempt %d: %d rows of %d shards", state["attempt"], sum(p.n_rows for p in plans), len(plans))
            if not plans and state != last:
                return n_failed
            lease.check()
            remove_drafts(store)
            write_state(store, state)
            written = formats_by_hash(old)
            formats = {
                index_of(state["attempt"], i): formats_of(attempts[0], written) for i, attempts in groups.items()
            }
            n_failed += compute_attempt(plans, formats, with_limits(config, plans), provenance, state, lease)
        lease.check()
        remove_drafts(store)
        report_shards(config, [plan.index for plan in work.plans])
        if not n_failed:
            write_state(store, {**state, "finished": True})
    return n_failed


def attempt_plan(plan: ShardPlan, state: RetryState, n_rows: int) -> ShardPlan:
    """Return the plan of the shard for `n_rows` rows of a shard of the job that are tried again."""
    return dataclasses.replace(plan, index=index_of(state["attempt"], plan.index), n_rows=n_rows)


def compute_attempt(
    plans: Sequence[ShardPlan],
    formats: Mapping[int, Formats],
    config: PipelineConfig,
    provenance: Provenance,
    state: RetryState,
    lease: Lease,
) -> int:
    """Compute and commit shards in the formats of the job's; return the number of those that failed.

    A failed shard has no record: its rows count with their earlier result. Raises UserError if more than
    `ray.max_failed_shards` fail or the lease is lost, and TooManyFaultsError above `max_internal_errors`.
    """
    n_failed, faults, groups = 0, list[Fault](), dict[Formats, list[ShardPlan]]()
    for plan in plans:
        groups.setdefault(formats[plan.index], []).append(plan)
    for names, group in groups.items():
        settings = with_formats(config, names)
        identity: Provenance = {**provenance, "config_hash": content_hash(settings)}
        make_steps = partial(RetrySteps, settings, identity, tuple(state["reasons"]), lease=lease.token)
        results = lease.guard(pick_runner(settings)(group, settings, make_steps))
        for result in progress(results, sum(plan.n_rows for plan in group), settings):
            if isinstance(result, Done):
                record_faults(faults, result.faults, settings)
                continue
            n_failed += 1
            step, error = result["step"], result["error"]
            logger.warning("shard %d failed in %s, the others go on: %s", result["shard"], step, error)
            check_failed(n_failed, result, settings, "Finished shards are kept")
    return n_failed
