"""A step of a shard on the cluster: start it, follow it, stop it."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline import watch
from pipeline.config import PipelineConfig
from pipeline.on_ray.cluster import Resources
from pipeline.on_ray.groups import Group, Shard
from pipeline.on_ray.health import selector_of
from pipeline.on_ray.models import Model
from pipeline.on_ray.remote import RESCUE_TIMEOUTS, rescue_step, run_step
from pipeline.on_ray.row_reader import RowsAhead
from pipeline.run import Notes

GRACE_S: Final = 60.0
"""Time after which the driver stops a call that exceeded its limit and that the worker did not end by itself."""


class Result(NamedTuple):
    """The result of a step: a reference to the table, the notes, and its bytes. `shard` is its index in a group."""

    table: Any
    notes: Notes
    nbytes: int = 0
    shard: int = -1


class Ended(NamedTuple):
    """The end of a call of a group."""


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
    refused: Sequence[str] = ()  # nodes that may not run it
    values: deque[Any] = field(default_factory=deque)

    def advance(self) -> Any:
        """Take the next value of the step; return its `Result`, or the `Done`, when it has ended, else None.

        Raises the exception of the step, and RayError if its worker is lost.
        """
        try:
            ref = next(self.stream)
        except StopIteration:
            return self._stopped()
        if not self.node:
            self.node = ray.get(ref)
            self.deadline = time.monotonic() + self.timeout_s
            if not self.shard.is_mate:
                watch.begun(self.shard.plan.index, self.shard.step, self.shard.plan.n_rows)
        elif not self.values:
            self.values.append(ref)  # the table, which stays where it is
        else:
            return self._result(self.values.popleft(), ray.get(ref))
        return None

    def _stopped(self) -> Any:
        if self.values:
            ray.get(self.values[-1])  # an error in place of the table
        raise RuntimeError("a step ended without a result")

    def _result(self, table: Any, value: Any) -> Any:
        return Result(table, *value) if isinstance(value, tuple) else value

    def stop(self) -> None:
        """Kill the worker of this call."""
        if self.model is not None:
            self.model.kill()
        else:
            ray.cancel(self.stream, force=True)


@dataclass(eq=False, kw_only=True)
class GroupCall(Call):
    """A call that feeds a shard to a group, or finishes the group; it returns each shard that has left the models."""

    group: Group
    run: int
    is_end: bool = False

    @property
    def is_stale(self) -> bool:
        """The group has begun another run, or its shards go on alone."""
        return self.run != self.group.run

    def _stopped(self) -> Any:
        return super()._stopped() if self.values or not self.node else Ended()

    def _result(self, table: Any, value: Any) -> Any:
        index, notes = value
        return Result(table, notes, shard=index)


class Calls:
    """Starts calls with the settings of the job."""

    def __init__(self, recipe: bytes, config: PipelineConfig) -> None:
        self.recipe, self.limit, self.timeout_s = recipe, config.max_internal_errors, config.ray.step_timeout_s
        self.rows = RowsAhead(config.read)
        # A task is not retried by Ray: the driver has to know of each death, and decides what is computed again.
        options: dict[str, Any] = {"num_returns": "streaming", "max_retries": 0}
        self.run_step: Any = ray.remote(**options)(run_step)
        self.rescue_step: Any = ray.remote(**options)(rescue_step)

    def task(self, shard: Shard, resources: Resources, refused: Sequence[str], home: str = "") -> Call:
        """Start the next step of a shard as a task; a step that has ended its worker twice, in child processes.

        The nodes `refused` do not run it; without any, the node `home` does if it is alive.
        """
        options: dict[str, Any] = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0)}
        if refused:
            options["label_selector"] = selector_of(refused)
        elif home:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(home, soft=True)
        if shard.is_rescued:
            remote = self.rescue_step.options(**options)
            stream = remote.remote(self.recipe, self.timeout_s, self.limit, shard.step, shard.plan, *shard.state)
            return Call(shard, stream, RESCUE_TIMEOUTS * self.timeout_s + GRACE_S, resources, refused=refused)
        rows = self.rows.of(shard.plan) if shard.step == "prepare" else []
        stream = self.run_step.options(**options).remote(
            self.recipe, self.timeout_s, shard.step, shard.plan, *shard.state, rows=rows
        )
        return Call(shard, stream, self.timeout_s + GRACE_S, resources, refused=refused)

    def infer(self, shard: Shard, model: Model) -> Call:
        """Queue the step `infer` of a shard alone at a model worker, which may still compute another one."""
        stream = model.actor.infer.options(num_returns="streaming").remote(shard.plan, *shard.state)
        return Call(shard, stream, self.timeout_s + GRACE_S, {}, model, deadline=self._deadline(model))

    def feed(self, group: Group, shard: Shard, model: Model) -> Call:
        """Queue the next shard of a group at its model worker."""
        feed = model.actor.feed.options(num_returns="streaming")
        return self._group_call(group, shard, model, feed.remote(group.key, group.n_fed, shard.plan, *shard.prepared))

    def finish(self, group: Group, model: Model) -> Call:
        """Queue the end of a group at its model worker."""
        stream = model.actor.finish.options(num_returns="streaming").remote(group.key)
        return self._group_call(group, group.shards[-1], model, stream, is_end=True)

    def _group_call(self, group: Group, shard: Shard, model: Model, stream: Any, is_end: bool = False) -> Call:
        deadline, timeout_s = self._deadline(model), self.timeout_s + GRACE_S
        return GroupCall(
            shard, stream, timeout_s, {}, model, deadline=deadline, group=group, run=group.run, is_end=is_end
        )

    def _deadline(self, model: Model) -> float:
        """Return the time at which a call must have ended that is queued at a model worker now."""
        deadline = time.monotonic() + (self.timeout_s + GRACE_S) * (1 + model.n_calls)
        model.n_calls += 1
        return deadline
