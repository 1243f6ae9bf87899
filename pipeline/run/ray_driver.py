"""The driver of a job on Ray: which step comes next, tables that wait, what a failure means, and time limits."""

import logging
import pickle
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import ray
from ray.exceptions import ObjectLostError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.config import PipelineConfig, RayConfig
from pipeline.faults import StepTimeoutError
from pipeline.output.manifest import failed_shard
from pipeline.read.types import ShardPlan, Task
from pipeline.run.breaker import Breaker, PutOffError
from pipeline.run.progress import Follower, tell
from pipeline.run.ray_workers import (
    CALLS_PER_MODEL,
    POLL_S,
    RESCUE_TIMEOUTS,
    Cluster,
    Health,
    Model,
    Models,
    Resources,
    RowsAhead,
    Shard,
    kind_of,
    message_of,
    rescue_step,
    root,
    run_step,
    traceback_of,
)
from pipeline.run.steps import Notes, Recipe
from pipeline.stages.order import STEPS, Step, steps_of
from schemas.manifest import FailedShard

# A step of a shard on the cluster: start it, follow it, stop it.

GRACE_S: Final = 60.0
"""Time after which the driver stops a call that exceeded its limit and that the worker did not end by itself."""


class Result(NamedTuple):
    """The result of a step: a reference to the table, the notes, and the bytes of the table."""

    table: Any
    notes: Notes
    nbytes: int = 0


@dataclass(eq=False)
class Call:
    """A running step. `node` is empty until the step has begun."""

    shard: Shard
    stream: Any
    timeout_s: float
    resources: Resources
    model: Model | None = None
    node: str = ""
    deadline: float = float("inf")
    table: Any = None

    def advance(self) -> Any:
        """Take the next value of the step; return its `Result`, or that of the shard, when it has ended, else None.

        Raises the exception of the step, and RayError if its worker is lost.
        """
        try:
            ref = next(self.stream)
        except StopIteration:
            if self.table is not None:
                ray.get(self.table)  # an error in place of the table
            raise RuntimeError("a step ended without a result") from None
        if not self.node:
            self.node = ray.get(ref)
            self.deadline = time.monotonic() + self.timeout_s
            tell(Follower.begun, self.shard.plan.index, self.shard.step, self.shard.plan.n_rows)
        elif self.table is None:
            self.table = ref  # it stays where it is
        else:
            value = ray.get(ref)
            return Result(self.table, *value) if isinstance(value, tuple) else value
        return None

    def stop(self) -> None:
        """Kill the worker of this call."""
        if self.model is not None:
            self.model.kill()
        else:
            ray.cancel(self.stream, force=True)


class Calls:
    """Starts calls. `make` refers to what returns the steps in a worker, in the object store of the cluster."""

    def __init__(self, make: Any, job: PipelineConfig | None, config: RayConfig) -> None:
        self.make, self.timeout_s = make, config.step_timeout_s
        self.limit = None if job is None else job.max_internal_errors
        self.rows = None if job is None else RowsAhead(job.read)
        # A task is not retried by Ray: the driver has to know of each death, and decides what is computed again.
        options: dict[str, Any] = {"num_returns": "streaming", "max_retries": 0}
        self.run_step: Any = ray.remote(**options)(run_step)
        self.rescue_step: Any = ray.remote(**options)(rescue_step)

    def task(self, shard: Shard, resources: Resources, node: str | None) -> Call:
        """Start the next step of a shard as a task; a step that has ended its worker twice, in child processes.

        It runs on `node`; anywhere if that is None, or has gone.
        """
        options: dict[str, Any] = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0)}
        if node is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
        if shard.is_rescued:
            remote = self.rescue_step.options(**options)
            stream = remote.remote(self.make, self.timeout_s, self.limit, shard.step, shard.plan, *shard.state)
            return Call(shard, stream, RESCUE_TIMEOUTS * self.timeout_s + GRACE_S, resources)
        rows = self.rows.of(shard.plan) if self.rows is not None and shard.step == "prepare" else []
        stream = self.run_step.options(**options).remote(
            self.make, self.timeout_s, shard.step, shard.plan, *shard.state, rows=rows
        )
        return Call(shard, stream, self.timeout_s + GRACE_S, resources)

    def infer(self, shard: Shard, model: Model) -> Call:
        """Queue the step `infer` of a shard at a model worker, which may still compute another one."""
        stream = model.actor.infer.options(num_returns="streaming").remote(shard.plan, *shard.state)
        timeout_s = self.timeout_s + GRACE_S
        deadline = time.monotonic() + timeout_s * (1 + model.n_calls)
        model.n_calls += 1
        return Call(shard, stream, timeout_s, {}, model, deadline=deadline)


# The finished tables of shards in the object stores of the cluster, limited in bytes.

MEMORY_SHARE: Final = 0.5
"""Share of the object stores that tables may take; the rest is for copies on their way, and for other jobs."""


class Tables:
    """Counts the bytes of the tables that the driver holds."""

    def __init__(self) -> None:
        self.held, self.n_made, self.made = 0, 0, 0
        self._shards: dict[Shard, int] = {}

    def add(self, shard: Shard, nbytes: int) -> None:
        """Note the table of a shard."""
        self.drop(shard)
        self._shards[shard] = nbytes
        self.held += nbytes
        self.made += nbytes
        self.n_made += 1

    def drop(self, shard: Shard) -> None:
        """Note that the table of a shard is no longer needed, or lost."""
        self.held -= self._shards.pop(shard, 0)

    def has_room(self, n_coming: int, cluster: Cluster) -> bool:
        """Return True if another table fits besides those that are being made, whose size is taken to be the mean."""
        mean = self.made / self.n_made if self.n_made else 0
        coming = (n_coming + 1) * mean
        return not (self.held or n_coming) or self.held + coming <= MEMORY_SHARE * cluster.total("object_store_memory")


# The state of a job on a cluster: shards that wait, and calls that run.


class Work:
    """The shards of a job. Each is in a queue or in a call, or put off."""

    def __init__(self, plans: Sequence[ShardPlan | Task], steps: Sequence[Step] = STEPS) -> None:
        self.n_left, self.steps = len(plans), steps
        self.tables = Tables()
        self.running: dict[Any, Call] = {}  # by stream
        self.tasks: dict[Step, deque[Shard]] = {step: deque() for step in steps}
        self.tasks[steps[0]].extend(Shard(plan, steps[0]) for plan in plans)
        self.for_models: deque[Shard] = deque()  # prepared, and not at a model worker
        self.failed: deque[FailedShard] = deque()
        self.later: list[tuple[float, Shard]] = []  # with the time of their turn

    def put_off(self, shard: Shard, pause_s: float) -> None:
        """Let a shard begin again after a pause."""
        self.later.append((time.monotonic() + pause_s, shard))

    def wake(self) -> None:
        """Queue the shards first whose pause is over."""
        for due, shard in [entry for entry in self.later if entry[0] <= time.monotonic()]:
            self.later.remove((due, shard))
            self.begin_again(shard)

    def queue(self, shard: Shard, first: bool = False) -> None:
        """Let a shard wait for its next step."""
        is_model = shard.step == "infer" and not shard.is_rescued
        waiting = self.for_models if is_model else self.tasks[shard.step]
        (waiting.appendleft if first else waiting.append)(shard)

    def begin(self, call: Call) -> None:
        """Note a call."""
        self.running[call.stream] = call

    def end(self, call: Call) -> None:
        """Note the end of a call."""
        del self.running[call.stream]
        if call.model is not None:
            call.model.n_calls -= 1

    def n_running(self, step: Step) -> int:
        """Return the number of tasks that run a step or wait for resources."""
        return sum(call.model is None and call.shard.step == step for call in self.running.values())

    def advance(self, shard: Shard, result: Result) -> None:
        """Let a shard wait for the step after the one that has left this result."""
        shard.step = self.steps[self.steps.index(shard.step) + 1]
        shard.state, shard.is_rescued = (result.table, result.notes), False
        shard.nodes.clear()
        self.tables.add(shard, result.nbytes)
        self.queue(shard)

    def release(self, shard: Shard) -> None:
        """Drop the table of a shard."""
        shard.state = ()
        self.tables.drop(shard)

    def begin_again(self, shard: Shard) -> None:
        """Let a shard begin again whose table is lost, or does not count."""
        self.release(shard)
        shard.step, shard.is_rescued = self.steps[0], False
        shard.nodes.clear()
        self.queue(shard, first=True)


# The consequences of failed calls: which shards begin again, which ones have failed.

logger = logging.getLogger("hypergrit")

MAX_LOSSES: Final = 50
"""Losses of machines after which a shard has failed nevertheless."""


class Failures:
    """Decides what a failed call means."""

    def __init__(self, work: Work, models: Models, cluster: Cluster, health: Health, config: RayConfig) -> None:
        self.work, self.models, self.cluster, self.health, self.config = work, models, cluster, health, config

    def judge(self, call: Call, error: BaseException) -> None:
        """Decide what a failed call means. A death counts against the shard only if its node is still alive.

        Raises the errors of the job.
        """
        kind = kind_of(error)
        tell(Follower.lost, call.shard.plan.index)
        if kind == "job":
            raise root(error) from None
        if call.model is not None and isinstance(root(error), RayActorError):
            self.models.discard(call.model)
        if kind == "crash":
            self.cluster.poll(now=True)
        if kind == "shard" or (kind == "crash" and self.cluster.is_alive(call.node)):
            self.count(call, error, is_crash=kind == "crash")
        else:
            self.lose(call.shard, error)

    def stop(self, call: Call) -> None:
        """Kill the worker of a call that exceeded its time limit, which counts as a crash of the shard."""
        call.stop()
        self.work.end(call)
        tell(Follower.lost, call.shard.plan.index)
        if call.model is not None:
            self.models.discard(call.model)
        self.count(call, StepTimeoutError(f"no result within {call.timeout_s:g} s"), is_crash=True)

    def lose(self, shard: Shard, error: BaseException) -> None:
        """Queue a shard first that lost its machine: from its start if its table is lost too, else from this step."""
        shard.losses += 1
        if shard.losses > MAX_LOSSES:
            self.give_up(shard, error)
            return
        logger.info("shard %d lost a machine in step %s: %s", shard.plan.index, shard.step, message_of(error))
        if isinstance(root(error), ObjectLostError):
            self.work.begin_again(shard)
        else:
            self.work.queue(shard, first=True)

    def count(self, call: Call, error: BaseException, is_crash: bool = False) -> None:
        """Count a failure of a shard: try the step again after the others, if possible on another node, or give up.

        After its second crash, the step of a job runs in child processes, which find the rows at fault. A failure for
        which the node is to blame is a loss.
        """
        shard = call.shard
        if call.node:
            shard.nodes.add(call.node)
            if self.health.fail(call.node, shard.step, shard.plan.index, self.cluster):
                self.lose(shard, error)
                return
        shard.attempts += 1
        shard.crashes += is_crash
        retries, is_of_job = self.config.retries, shard.step in STEPS
        if shard.attempts > retries and (shard.is_rescued or not (is_crash and is_of_job)):
            self.give_up(shard, error)
            return
        shard.is_rescued = is_crash and is_of_job and shard.crashes > min(1, retries)
        logger.warning("shard %d is tried again: %s in step %s", shard.plan.index, message_of(error), shard.step)
        self.work.queue(shard)

    def give_up(self, shard: Shard, error: BaseException) -> None:
        """Record a shard as failed."""
        texts = message_of(error), traceback_of(error)
        self.work.failed.append(failed_shard(shard.plan, shard.step, *texts, shard.attempts))
        self.work.release(shard)


# Follow the cluster: time limits, and requests that no node can meet.

RELEASE_S: Final = 5.0
"""Time without progress after which an idle model worker is released, so that tasks get its resources."""


class Upkeep:
    """Looks after the cluster between the calls of a job."""

    def __init__(self, work: Work, models: Models, cluster: Cluster, failures: Failures) -> None:
        self.work, self.models, self.cluster, self.failures = work, models, cluster, failures
        self.progressed = time.monotonic()

    def note_progress(self) -> None:
        """Note that a call has begun, gone on or ended."""
        self.progressed = time.monotonic()

    def look(self) -> None:
        """Stop calls that exceed their time limit, follow the nodes, report what no node can run."""
        if not self.cluster.poll():
            return
        busy = {id(call.model) for call in self.work.running.values() if call.model is not None and call.node}
        tell(Follower.models, len(self.models.ready), len(busy))
        tell(Follower.loading, ("infer",) if self.models.starting and not self.models.ready else ())
        now = time.monotonic()
        for call in [call for call in self.work.running.values() if call.deadline < now]:
            if call.stream in self.work.running:
                self.failures.stop(call)
        pending = [call.resources for call in self.work.running.values() if not call.node and call.model is None]
        starting = [self.models.request(self.cluster)] if self.models.starting else []
        self.cluster.warn([*pending, *starting])
        if pending:
            self._release_one()

    def _release_one(self) -> None:
        """End an idle model worker, since tasks wait for resources, if nothing runs that would free some."""
        is_computing = any(call.node for call in self.work.running.values())
        idle = self.models.idle()
        if idle and not is_computing and time.monotonic() - self.progressed > RELEASE_S:
            logger.info("an idle model worker is released, since tasks wait for CPUs")
            self.models.discard(idle[0])
            self.note_progress()


EXTRA: Final = 2
"""Shards beyond those that keep the cluster busy: their pending tasks show an autoscaler that more CPUs would help."""


class Driver:
    """Computes shards on a cluster, which this process has joined."""

    def __init__(self, plans: Sequence[ShardPlan | Task], config: RayConfig, recipe: Recipe) -> None:
        self.config, self.first, self.has_models = config, recipe.steps[0], "infer" in recipe.steps
        self.stages_of = {} if recipe.job is None else steps_of(recipe.job)
        make = ray.put(pickle.dumps(recipe.make))  # sent to each node once; it may hold a large evaluation set
        self.cluster = Cluster()
        self.cluster.poll(now=True)
        self.health = Health()
        self.models = Models(make, config)
        self.breaker = Breaker(config.retries)
        self.calls = Calls(make, recipe.job, config)
        self.work = Work(plans, recipe.steps)
        self.failures = Failures(self.work, self.models, self.cluster, self.health, config)
        self.upkeep = Upkeep(self.work, self.models, self.cluster, self.failures)

    def run(self) -> Iterator[Any]:
        """Compute all shards; yield the result of each, or its FailedShard, in order of completion.

        Raises UserError and TooManyFaultsError of a step, and UserError if model workers cannot start.
        """
        work = self.work
        while work.n_left:
            self._start_calls()
            for ref in self._wait():
                if ref in self.models.starting:
                    self.models.welcome(ref, self.cluster)
                    self.upkeep.note_progress()
                elif (done := self._advance(work.running[ref])) is not None:
                    work.n_left -= 1
                    yield done
            self.upkeep.look()
            while work.failed:
                work.n_left -= 1
                yield work.failed.popleft()

    def _start_calls(self) -> None:
        """Start steps, the last ones of a shard first; what does not run yet is pending on the cluster."""
        work, cpus = self.work, self.cluster.total("CPU")
        work.wake()
        bound = int(max(CALLS_PER_MODEL * len(self.models.ready), cpus)) + EXTRA
        while work.tasks.get("write") and self._may_start_task():
            self._start_task(work.tasks["write"].popleft())
        if self.has_models:
            while work.tasks["infer"]:
                self._start_task(work.tasks["infer"].popleft())
            n_after = len(work.tasks["write"]) + work.n_running("write")
            for model in self.models.free():
                while n_after < bound and model.n_calls < CALLS_PER_MODEL and (shard := self._take_for(model)):
                    work.begin(self.calls.infer(shard, model))
        while work.tasks[self.first] and self._may_start_task() and self._may_begin(bound, int(cpus) + EXTRA):
            self._start_task(work.tasks[self.first].popleft())
        if self.has_models:
            self.models.grow(self.cluster, len(work.for_models), work.n_left)

    def _may_begin(self, most_shards: int, most_tasks: int) -> bool:
        """Return True if a table more does not exceed the bounds on tables."""
        n_running = self.work.n_running(self.first)
        has_room = n_running < most_tasks and len(self.work.for_models) < most_shards
        return has_room and self.work.tables.has_room(n_running, self.cluster)

    def _take_for(self, model: Model) -> Shard | None:
        """Take the first shard that has not failed at the node of the model, or at those of all models."""
        nodes = {other.node for other in self.models.ready}
        for shard in self.work.for_models:
            if model.node not in shard.nodes or nodes <= shard.nodes:
                self.work.for_models.remove(shard)
                return shard
        return None

    def _may_start_task(self) -> bool:
        limit = self.config.cpu_workers
        return limit is None or sum(call.model is None for call in self.work.running.values()) < limit

    def _start_task(self, shard: Shard) -> None:
        model: Resources = self.models.request(self.cluster) if self.has_models else {}
        # A CPU worker and a model worker without a GPU share a CPU: the model uses most of it, and the CPU worker
        # mostly waits for the network.
        task = {"CPU": 0.5 if "CPU" in model else 1.0}
        request = model if shard.step == "infer" else task
        node = self.cluster.other(request, shard.nodes, shard.plan.index) if shard.nodes else None
        self.work.begin(self.calls.task(shard, request, node))

    def _wait(self) -> list[Any]:
        """Return a call with a new value or a model worker that has started; wait for POLL_S seconds at most."""
        refs = [*self.work.running, *self.models.starting]
        if not refs:
            time.sleep(POLL_S / 10 if self.work.later else POLL_S)
            return []
        ready, _ = ray.wait(refs, num_returns=1, timeout=POLL_S, fetch_local=False)
        return list(ready)

    def _advance(self, call: Call) -> Any:
        """Take the next value of a call; return the result of a shard that is finished now."""
        try:
            result = call.advance()
        except Exception as error:
            self.work.end(call)
            self.failures.judge(call, error)
            return None
        self.upkeep.note_progress()
        if result is None:
            return None
        self.work.end(call)
        shard = call.shard
        self.health.succeed(call.node, shard.step)
        if shard.step == "prepare":
            try:
                self.breaker.check(shard.plan, result.notes)
            except PutOffError as error:
                tell(Follower.lost, shard.plan.index)
                self.work.put_off(shard, error.pause_s)
                return None
        seconds = result.notes.seconds(self.stages_of[shard.step]) if isinstance(result, Result) else None
        tell(Follower.ended, shard.plan.index, shard.step, seconds)
        if isinstance(result, Result):
            self.work.advance(shard, result)
            return None
        self.work.release(shard)
        return result
