"""The driver of a job on Ray: which step comes next, tables that wait, what a failure means, and time limits."""

import logging
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.exceptions import ObjectLostError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.config import PipelineConfig, RayConfig
from pipeline.faults import StepTimeoutError
from pipeline.read.types import ShardPlan, Task
from pipeline.run.attempts import Attempts, Shard
from pipeline.run.progress import Follower, tell
from pipeline.run.ray_workers import (
    CALLS_PER_MODEL,
    POLL_S,
    RESCUE_TIMEOUTS,
    Cluster,
    Health,
    Left,
    Model,
    Models,
    Resources,
    RowsAhead,
    kind_of,
    message_of,
    root,
    run_step,
    traceback_of,
)
from pipeline.run.steps import Recipe
from pipeline.stages.order import Step, steps_of

# A step of a shard on the cluster: start it, follow it, stop it.

GRACE_S: Final = 60.0
"""Time after which the driver stops a call that exceeded its limit and that the worker did not end by itself."""


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
        """Take the next value of the step; when it has ended, return what it has `Left`, or the result of the shard, else None.

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
            return value._replace(table=self.table) if isinstance(value, Left) else value
        return None

    def stop(self) -> None:
        """Kill the worker of this call."""
        if self.model is not None:
            self.model.kill()
        else:
            ray.cancel(self.stream, force=True)


class Calls:
    """Starts calls, and holds those that run, by stream.

    `make` refers to what returns the steps in a worker, in the object store of the cluster.
    """

    def __init__(self, make: Any, job: PipelineConfig | None, config: RayConfig) -> None:
        self.make, self.timeout_s = make, config.step_timeout_s
        self.running: dict[Any, Call] = {}
        self.limit = None if job is None else job.max_internal_errors
        self.rows = None if job is None else RowsAhead(job.read)
        # A task is not retried by Ray: the driver has to know of each death, and decides what is computed again.
        self.run_step: Any = ray.remote(num_returns="streaming", max_retries=0)(run_step)

    def task(self, shard: Shard, resources: Resources, node: str | None) -> None:
        """Start the next step of a shard as a task, in child processes if it `is_rescued`.

        It runs on `node`; anywhere if that is None, or has gone.
        """
        options: dict[str, Any] = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0)}
        if node is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
        limit_s, more = self.timeout_s, dict[str, Any]()
        if shard.is_rescued:
            limit_s, more["rescue"] = RESCUE_TIMEOUTS * limit_s, (limit_s, self.limit)
        elif self.rows is not None and shard.step == "prepare":
            more["rows"] = self.rows.of(shard.plan)
        remote = self.run_step.options(**options)
        stream = remote.remote(self.make, limit_s, shard.step, shard.plan, *shard.state, **more)
        self.running[stream] = Call(shard, stream, limit_s + GRACE_S, resources)

    def infer(self, shard: Shard, model: Model) -> None:
        """Queue the step `infer` of a shard at a model worker, which may still compute another one."""
        stream = model.actor.infer.options(num_returns="streaming").remote(shard.plan, *shard.state)
        timeout_s = self.timeout_s + GRACE_S
        deadline = time.monotonic() + timeout_s * (1 + model.n_calls)
        model.n_calls += 1
        self.running[stream] = Call(shard, stream, timeout_s, {}, model, deadline=deadline)

    def end(self, call: Call) -> None:
        """Note the end of a call."""
        del self.running[call.stream]
        if call.model is not None:
            call.model.n_calls -= 1

    def n_running(self, step: Step) -> int:
        """Return the number of tasks that run a step or wait for resources."""
        return sum(call.model is None and call.shard.step == step for call in self.running.values())


# The consequences of failed calls: which shards begin again, which ones have failed.

logger = logging.getLogger("hypergrit")

MAX_LOSSES: Final = 50
"""Losses of machines after which a shard has failed nevertheless."""


class Failures:
    """Decides what a failed call means."""

    def __init__(self, attempts: Attempts, models: Models, cluster: Cluster, health: Health) -> None:
        self.attempts, self.models, self.cluster, self.health = attempts, models, cluster, health

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
        tell(Follower.lost, call.shard.plan.index)
        if call.model is not None:
            self.models.discard(call.model)
        self.count(call, StepTimeoutError(f"no result within {call.timeout_s:g} s"), is_crash=True)

    def lose(self, shard: Shard, error: BaseException) -> None:
        """Queue a shard first that lost its machine: from its start if its table is lost too, else from this step."""
        shard.losses += 1
        if shard.losses > MAX_LOSSES:
            self.attempts.give_up(shard, message_of(error), traceback_of(error))
            return
        logger.info("shard %d lost a machine in step %s: %s", shard.plan.index, shard.step, message_of(error))
        if isinstance(root(error), ObjectLostError):
            self.attempts.begin_again(shard)
        else:
            self.attempts.queue(shard, first=True)

    def count(self, call: Call, error: BaseException, is_crash: bool) -> None:
        """Count a failure of a shard, which is tried on another node if possible. One that its node is to blame for is a loss."""
        shard = call.shard
        if call.node:
            shard.nodes.add(call.node)
            if self.health.fail(call.node, shard.step, shard.plan.index, self.cluster):
                self.lose(shard, error)
                return
        self.attempts.count(shard, message_of(error), traceback_of(error), is_crash)


EXTRA: Final = 2
"""Shards beyond those that keep the cluster busy: their pending tasks show an autoscaler that more CPUs would help."""
RELEASE_S: Final = 5.0
"""Time without progress after which an idle model worker is released, so that tasks get its resources."""
MEMORY_SHARE: Final = 0.5
"""Share of the object stores that tables may take; the rest is for copies on their way, and for other jobs."""


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
        self.calls = Calls(make, recipe.job, config)
        self.attempts = Attempts(plans, recipe.steps, config.retries)
        self.failures = Failures(self.attempts, self.models, self.cluster, self.health)
        self.progressed = time.monotonic()  # when a call has begun, gone on or ended

    def run(self) -> Iterator[Any]:
        """Compute all shards; yield the result of each, or that it has `Failed`, in order of completion.

        Raises UserError and TooManyFaultsError of a step, and UserError if model workers cannot start.
        """
        while self.attempts.n_left:
            self._start_calls()
            for ref in self._wait():
                if ref in self.models.starting:
                    self.models.welcome(ref, self.cluster)
                    self.progressed = time.monotonic()
                elif (done := self._advance(self.calls.running[ref])) is not None:
                    yield done
            self._look()
            while self.attempts.failed:
                yield self.attempts.failed.popleft()

    def _start_calls(self) -> None:
        """Start steps, the last ones of a shard first; what does not run yet is pending on the cluster."""
        attempts, tasks, cpus = self.attempts, self.attempts.tasks, self.cluster.total("CPU")
        attempts.wake()
        bound = int(max(CALLS_PER_MODEL * len(self.models.ready), cpus)) + EXTRA
        while tasks.get("write") and self._may_start_task():
            self._start_task(tasks["write"].popleft())
        if self.has_models:
            while tasks["infer"]:
                self._start_task(tasks["infer"].popleft())
            n_after = len(tasks["write"]) + self.calls.n_running("write")
            for model in self.models.free():
                while n_after < bound and model.n_calls < CALLS_PER_MODEL and (shard := self._take_for(model)):
                    self.calls.infer(shard, model)
        while tasks[self.first] and self._may_start_task() and self._may_begin(bound, int(cpus) + EXTRA):
            self._start_task(tasks[self.first].popleft())
        if self.has_models:
            self.models.grow(self.cluster, len(attempts.for_models), attempts.n_left)

    def _may_begin(self, most_shards: int, most_tasks: int) -> bool:
        """Return True if a table more does not exceed the bounds on tables."""
        n_running = self.calls.n_running(self.first)
        has_room = n_running < most_tasks and len(self.attempts.for_models) < most_shards
        nbytes = MEMORY_SHARE * self.cluster.total("object_store_memory")
        return has_room and self.attempts.has_room(n_running, nbytes)

    def _take_for(self, model: Model) -> Shard | None:
        """Take the first shard that has not failed at the node of the model, or at those of all models."""
        nodes = {other.node for other in self.models.ready}
        for shard in self.attempts.for_models:
            if model.node not in shard.nodes or nodes <= shard.nodes:
                self.attempts.for_models.remove(shard)
                return shard
        return None

    def _may_start_task(self) -> bool:
        limit = self.config.cpu_workers
        return limit is None or sum(call.model is None for call in self.calls.running.values()) < limit

    def _start_task(self, shard: Shard) -> None:
        model: Resources = self.models.request(self.cluster) if self.has_models else {}
        # A CPU worker and a model worker without a GPU share a CPU: the model uses most of it, and the CPU worker
        # mostly waits for the network.
        task = {"CPU": 0.5 if "CPU" in model else 1.0}
        request = model if shard.step == "infer" else task
        node = self.cluster.other(request, shard.nodes, shard.plan.index) if shard.nodes else None
        self.calls.task(shard, request, node)

    def _wait(self) -> list[Any]:
        """Return a call with a new value or a model worker that has started; wait for POLL_S seconds at most."""
        refs = [*self.calls.running, *self.models.starting]
        if not refs:
            time.sleep(POLL_S / 10 if self.attempts.later else POLL_S)
            return []
        ready, _ = ray.wait(refs, num_returns=1, timeout=POLL_S, fetch_local=False)
        return list(ready)

    def _advance(self, call: Call) -> Any:
        """Take the next value of a call; return the result of a shard that is finished now."""
        shard = call.shard
        try:
            result = call.advance()
        except Exception as error:
            self.calls.end(call)
            self.failures.judge(call, error)
            return None
        self.progressed = time.monotonic()
        if result is None:
            return None
        self.calls.end(call)
        self.health.succeed(call.node, shard.step)
        if not isinstance(result, Left):
            tell(Follower.ended, shard.plan.index, shard.step)
            self.attempts.release(shard)
            self.attempts.n_left -= 1
            return result
        if self.attempts.has_passed(shard, result.notes, result.notes.seconds(self.stages_of[shard.step])):
            self.attempts.keep(shard, result.table, result.notes, result.nbytes)
        return None

    def _look(self) -> None:
        """Stop calls that exceed their time limit, follow the nodes, report what no node can run."""
        if not self.cluster.poll():
            return
        models, running, now = self.models, self.calls.running, time.monotonic()
        tell(
            Follower.models,
            len(models.ready),
            len({id(call.model) for call in running.values() if call.model and call.node}),
        )
        tell(Follower.loading, ("infer",) if models.starting and not models.ready else ())
        for call in [call for call in running.values() if call.deadline < now]:
            self.calls.end(call)
            self.failures.stop(call)
        pending = [call.resources for call in running.values() if not call.node and call.model is None]
        self.cluster.warn([*pending, *([models.request(self.cluster)] if models.starting else [])])
        is_computing, idle = any(call.node for call in running.values()), models.idle()
        if pending and idle and not is_computing and now - self.progressed > RELEASE_S:  # it would free some
            logger.info("an idle model worker is released, since tasks wait for CPUs")
            models.discard(idle[0])
            self.progressed = now
