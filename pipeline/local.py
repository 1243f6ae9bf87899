"""Compute shards one after the other in a child process of this one, without Ray."""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from pipeline import watch
from pipeline.config import PipelineConfig
from pipeline.faults.fault import ShardError, describe
from pipeline.read.types import ShardPlan
from pipeline.rescue.child import Child, ProcessDiedError, RemoteError, StepTimeoutError
from pipeline.rescue.search import Rescue
from pipeline.run import STAGES_OF, Done, Step, Steps
from pipeline.write.failed import failed_shard
from schemas.manifest import FailedShard, Manifest, Provenance

logger = logging.getLogger("hypergrit")


class Worker:
    """The object in the child: the steps, and the table between two of them, which never leaves the child."""

    def __init__(self, make_steps: Callable[[], Steps]) -> None:
        self.steps = make_steps()
        for step in STAGES_OF:
            self.steps.load(step)

    def prepare(self, plan: ShardPlan) -> None:
        """Run the first step."""
        self.table, self.notes = self.steps.prepare(plan)

    def infer(self, plan: ShardPlan) -> None:
        """Run the second step."""
        self.table, self.notes = self.steps.infer(plan, self.table, self.notes)

    def write(self, plan: ShardPlan) -> Done:
        """Run the third step."""
        table = self.table
        del self.table
        return self.steps.write(plan, table, self.notes)


def run_local(plans: Sequence[ShardPlan], config: PipelineConfig, provenance: Provenance) -> Iterator[Manifest]:
    """Compute the shards one after the other in a child process; yield each manifest once it is committed.

    `provenance` is `make_provenance(config)`. Rows on which a stage raises, crashes or hangs are
    dropped as `internal_error`. Raises UserError for errors that the user can fix, and ShardError for a shard that
    fails for another reason.

    >>> import csv, tempfile
    >>> from pathlib import Path
    >>> from pipeline import load_config, make_provenance, plan_shards, run_local
    >>> folder = Path(tempfile.mkdtemp())
    >>> rows = [("url", "caption"), ("ftp://example.org/a.jpg", "a cat"), ("", "a dog")]
    >>> with (folder / "pairs.csv").open("w", newline="") as file:
    ...     csv.writer(file).writerows(rows)
    >>> config = load_config([f"input={folder / 'pairs.csv'}", f"output={folder / 'out'}"])
    >>> plans = plan_shards(config.input, config.rows_per_shard, config.limit, config.read)
    >>> [manifest["counts"] for manifest in run_local(plans, config, make_provenance(config))]
    [{'read': 2, 'kept': 0, 'dropped': {'download': {'invalid_url': 1}, 'read': {'missing_url': 1}}}]
    """
    for result in compute_local(plans, config, partial(Steps, config, provenance)):
        if not isinstance(result, Done):
            raise ShardError(f"shard {result['shard']} failed in step {result['step']!r}: {result['error']}")
        yield result.manifest


def compute_local(
    plans: Sequence[ShardPlan], config: PipelineConfig, make_steps: Callable[[], Steps]
) -> Iterator[Done | FailedShard]:
    """Compute the shards; yield each when it is committed or has failed. `make_steps` must be picklable.

    Raises UserError for errors that the user can fix, and TooManyFaultsError.
    """
    with Child(partial(Worker, make_steps)) as child:
        child.start()
        for plan in plans:
            yield compute_shard_in(child, plan, config, make_steps)


def compute_shard_in(
    child: Child, plan: ShardPlan, config: PipelineConfig, make_steps: Callable[[], Steps]
) -> Done | FailedShard:
    """Compute a shard in `child`, and after a crash or a hang stage by stage, to find the rows at fault."""
    for attempt in range(1, config.ray.retries + 2):
        step: Step = "prepare"
        try:
            for step in STAGES_OF:
                watch.begun(plan.index, step, plan.n_rows)
                done = child.call(step, plan, timeout_s=config.ray.step_timeout_s)
                watch.ended(plan.index, step)
            assert isinstance(done, Done)
            return done
        except (ProcessDiedError, StepTimeoutError) as death:
            logger.warning("shard %d: %s in step %r; computed again stage by stage", plan.index, describe(death), step)
            return rescue_shard(plan, config, make_steps)
        except (ShardError, RemoteError) as error:
            failed = record_of(plan, step, error, attempt)
    return failed


def rescue_shard(plan: ShardPlan, config: PipelineConfig, make_steps: Callable[[], Steps]) -> Done | FailedShard:
    """Compute a shard whose process has died, in processes of its own."""
    rescue = Rescue(make_steps, config.ray.step_timeout_s, config.max_internal_errors)
    step: Step = "prepare"
    done: Any = ()
    try:
        for step in STAGES_OF:
            done = rescue.run(step, plan, *done)
        assert isinstance(done, Done)
        return done
    except (ProcessDiedError, StepTimeoutError, ShardError, RemoteError) as error:
        return record_of(plan, step, error, attempts=2)


def record_of(plan: ShardPlan, step: Step, error: Exception, attempts: int) -> FailedShard:
    """Return the record of a shard that failed with this error."""
    text = str(error) if isinstance(error, ShardError | RemoteError) else describe(error)
    trace = error.traceback if isinstance(error, RemoteError) else ""
    return failed_shard(plan, step, text, trace, attempts)
