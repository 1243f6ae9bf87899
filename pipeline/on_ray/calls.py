"""A step of a shard on the cluster: start it, follow it, stop it."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import ray

from pipeline import watch
from pipeline.config import PipelineConfig
from pipeline.on_ray.cluster import Resources
from pipeline.on_ray.health import selector_of
from pipeline.on_ray.models import Model
from pipeline.on_ray.remote import RESCUE_TIMEOUTS, rescue_step, run_step
from pipeline.read.types import ShardPlan
from pipeline.run import Notes, Step

GRACE_S: Final = 60.0
"""Time after which the driver stops a call that exceeded its limit and that the worker did not end by itself."""


@dataclass(eq=False)
class Shard:
    """A shard on its way: its next step, the table and the notes that the step before has left, and its failures.

    `nodes` are those on which the next step has failed.
    """

    plan: ShardPlan
    step: Step = "prepare"
    state: tuple[Any, ...] = ()
    attempts: int = 0
    crashes: int = 0
    losses: int = 0
    is_rescued: bool = False
    nodes: set[str] = field(default_factory=set)


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
        """Take the next value of the step; return its notes, or the `Done`, when it has ended, else None.

        Raises the exception of the step, and RayError if its worker is lost.
        """
        try:
            ref = next(self.stream)
        except StopIteration:  # after an error in place of the table
            ray.get(self.values[-1])
            raise RuntimeError("a step ended without a result") from None
        if not self.node:
            self.node = ray.get(ref)
            self.deadline = time.monotonic() + self.timeout_s
            watch.begun(self.shard.plan.index, self.shard.step, self.shard.plan.n_rows)
        elif not self.values:
            self.values.append(ref)  # the table, which stays where it is
        else:
            return ray.get(ref)
        return None

    def state(self, notes: Notes) -> tuple[Any, ...]:
        """Return the arguments of the next step."""
        return (self.values[0], notes)

    def stop(self) -> None:
        """Kill the worker of this call."""
        if self.model is not None:
            self.model.kill()
        else:
            ray.cancel(self.stream, force=True)


class Calls:
    """Starts calls with the settings of the job."""

    def __init__(self, recipe: bytes, config: PipelineConfig) -> None:
        self.recipe, self.limit, self.timeout_s = recipe, config.max_internal_errors, config.ray.step_timeout_s
        # A task is not retried by Ray: the driver has to know of each death, and decides what is computed again.
        options: dict[str, Any] = {"num_returns": "streaming", "max_retries": 0}
        self.run_step: Any = ray.remote(**options)(run_step)
        self.rescue_step: Any = ray.remote(**options)(rescue_step)

    def task(self, shard: Shard, resources: Resources, refused: Sequence[str]) -> Call:
        """Start the next step of a shard as a task; a step that has ended its worker twice, in child processes.

        The nodes `refused` do not run it.
        """
        options: dict[str, Any] = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0)}
        options |= {"label_selector": selector_of(refused)} if refused else {}
        if shard.is_rescued:
            remote = self.rescue_step.options(**options)
            stream = remote.remote(self.recipe, self.timeout_s, self.limit, shard.step, shard.plan, *shard.state)
            return Call(shard, stream, RESCUE_TIMEOUTS * self.timeout_s + GRACE_S, resources, refused=refused)
        stream = self.run_step.options(**options).remote(
            self.recipe, self.timeout_s, shard.step, shard.plan, *shard.state
        )
        return Call(shard, stream, self.timeout_s + GRACE_S, resources, refused=refused)

    def infer(self, shard: Shard, model: Model) -> Call:
        """Queue the step `infer` of a shard at a model worker, which may still compute another one."""
        stream = model.actor.infer.options(num_returns="streaming").remote(shard.plan, *shard.state)
        timeout_s = self.timeout_s + GRACE_S
        deadline = time.monotonic() + timeout_s * (1 + model.n_calls)
        model.n_calls += 1
        return Call(shard, stream, timeout_s, {}, model, deadline=deadline)
