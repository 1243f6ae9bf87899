"""The only loop over shards: a runner computes them; here their faults and failures are counted and recorded."""

import dataclasses
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from hypergrit_common.cli import INCOMPLETE, NOTHING_KEPT
from hypergrit_common.errors import UserError
from hypergrit_common.progress import tracked
from hypergrit_common.text import counted
from pipeline.config import PipelineConfig, RayConfig
from pipeline.faults import Fault, check_limit
from pipeline.output.lock import Lease
from pipeline.output.manifest import write_failed
from pipeline.read.types import ShardPlan, Task
from pipeline.report.stats import Rollups
from pipeline.run.local import compute_local
from pipeline.run.progress import progress
from pipeline.run.steps import Done, Failed, Recipe
from schemas.files import MANIFEST_FILE
from schemas.manifest import FailedShard, Manifest

logger = logging.getLogger("hypergrit")

Plans = Sequence[ShardPlan | Task]
Runner = Callable[[Plans, RayConfig, Recipe], Iterator[Any]]
"""Yields the result of each shard, such as `Done`, or `Failed`."""


class Run:
    """Computes shards, in one call of `results` or in several, with common limits for all of them.

    It stops if more than 1 % of the `limited` shards fail, and more than 10, or more rows than `max_internal_errors`,
    by default 1 % of theirs and at least 100; without any it has no limits. Nothing is computed any more once `lease` is
    lost. If it `records`, its output gets the rollups, and a record of each failed shard in place of the manifest; else
    failed shards stay as they are.
    """

    def __init__(
        self, config: PipelineConfig, lease: Lease | None = None, records: bool = False, limited: Plans = ()
    ) -> None:
        if limited and config.max_internal_errors is None:
            most = max(sum(plan.n_rows for plan in limited) // 100, 100)
            config = dataclasses.replace(config, max_internal_errors=most)
        self.config, self.lease = config, lease
        self.max_failed = max(len(limited) // 100, 10) if limited else math.inf
        self.output = lease.store if lease is not None and records else None
        self.faults: list[Fault] = []
        self.failed: dict[int, FailedShard] = {}
        self.hosts: dict[int, str] = {}  # that wrote the other shards

    def results(self, recipe: Recipe, plans: Plans) -> Iterator[Any]:
        """Compute shards; yield the result of each that does not fail, in order of completion, and `fail` the others.

        Raises UserError if more than `max_failed` shards fail or the lease is lost, and for errors that the user can
        fix, and TooManyFaultsError above `max_internal_errors`.
        """
        if not plans:
            return
        results = pick_runner(self.config.ray)(plans, self.config.ray, recipe)
        if self.lease is not None:
            results = self.lease.guard(results)
        with nullcontext() if self.output is None else Rollups(self.output, (plan.index for plan in plans)) as rollups:
            for result in self._shown(results, recipe, plans):
                if isinstance(result, Failed):
                    self.fail(result.record)
                else:
                    if isinstance(result, Done):
                        self.hosts[result.index] = result.host
                        self._record_faults(result.faults)
                    yield result
                if rollups is not None:
                    rollups.add(result.index)

    def finish(self, recipe: Recipe, plans: Plans) -> None:
        """Compute shards whose result is that they are committed. Raises like `results`."""
        deque(self.results(recipe, plans), maxlen=0)

    def fail(self, failed: FailedShard) -> None:
        """Count a failed shard, record it, and log it in one line. Raises UserError above the limit."""
        self.failed[failed["shard"]] = failed
        if self.output is not None:
            assert self.lease is not None
            self.lease.check()  # the record removes the manifest of an earlier run
            self.output.remove([MANIFEST_FILE.path(failed["shard"])])
            write_failed(self.output, failed)
        logger.warning(
            "shard %d failed in %s after %s, the others go on: %s",
            failed["shard"], failed["step"], counted(failed["attempts"], "attempt"), failed["error"],
        )  # fmt: skip
        if len(self.failed) > self.max_failed:
            where = "" if self.output is None else "The folder _failed/ of the output holds their errors; "
            raise UserError(
                f"{counted(len(self.failed), 'shard')} failed, more than the job may lose ({self.max_failed}); the "
                f"last is shard {failed['shard']}: {failed['error']}. {where}finished shards are kept"
            )

    def _record_faults(self, faults: Iterable[Fault]) -> None:
        """Add the faults of a shard, and log them: the first with its traceback, the others in a line."""
        for fault in faults:
            trace = f"\n{fault.traceback}" if fault.traceback and not self.faults else ""
            text = "row %s is dropped as internal_error in %s: %s%s"
            logger.warning(text, fault.key, fault.stage, fault.detail, trace)
            self.faults.append(fault)
        check_limit(self.faults, self.config.max_internal_errors)

    def _shown(self, results: Iterator[Any], recipe: Recipe, plans: Plans) -> Iterator[Any]:
        """Pass on the results, and show the progress: of a job in rows, as its steps go on, else in shards."""
        config = self.config
        if recipe.job is not None:
            return progress(results, sum(plan.n_rows for plan in plans), config)
        return tracked(results, len(plans), recipe.text, quiet=config.quiet, most_s=config.log.interval_s)


class JobResult(NamedTuple):
    """The end of a job: the number of failures, which are failed shards and damaged input files, and of rows kept."""

    n_failures: int
    n_kept: int

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return INCOMPLETE if self.n_failures else 0 if self.n_kept else NOTHING_KEPT


def tasks_of(manifests: Iterable[Manifest]) -> list[Task]:
    """Return a task for each finished shard, whose subject is its manifest."""
    return [Task(manifest["shard"], manifest["counts"]["read"], manifest) for manifest in manifests]


def pick_runner(config: RayConfig) -> Runner:
    """Return the runner of `ray.runner`; Ray is imported only if it is used."""
    if config.runner == "local":
        return compute_local
    from pipeline.run.ray import compute_on_ray

    return compute_on_ray


@contextmanager
def connected(config: RayConfig) -> Iterator[None]:
    """Join the Ray cluster once for all calls in the `with` block; local processes need nothing. Raises UserError."""
    if config.runner == "local":
        yield
        return
    from pipeline.run.ray import joined

    with joined(config):
        yield
