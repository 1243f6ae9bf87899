"""The code that runs in Ray's workers. A step is a generator: its first value, the node, tells that it has begun."""

import faulthandler
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import cv2
import ray

from pipeline.faults.fault import BrokenProcessError
from pipeline.on_ray.open_group import OpenGroup
from pipeline.on_ray.row_reader import fetch_rows
from pipeline.read.ahead import provided
from pipeline.read.types import ShardPlan
from pipeline.rescue.search import Rescue
from pipeline.rescue.server import BROKEN
from pipeline.run import Done, Step, Steps
from schemas.table import without_images

RESCUE_TIMEOUTS: Final = 20.0
"""Time limit of a search for faulty rows, in time limits of a step."""


@contextmanager
def deadline(timeout_s: float) -> Iterator[None]:
    """End this process, with the stacks of its threads in the log, if the block takes longer.

    The watchdog of `faulthandler` also ends a process that hangs in C code.
    """
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=2)
    try:
        yield
    except BrokenProcessError as error:
        print(f"the process ends: {error}", file=sys.stderr, flush=True)
        os._exit(BROKEN)
    finally:
        faulthandler.cancel_dump_traceback_later()


@lru_cache(maxsize=1)
def load_steps(recipe: bytes) -> Steps:
    """Return the steps of a job, which stay loaded in this process. `recipe` is a pickled function that makes them."""
    cv2.setNumThreads(1)  # there is one worker per core; Ray limits the threads of torch in the same way
    steps: Steps = pickle.loads(recipe)()
    return steps


def run_step(
    recipe: bytes, timeout_s: float, step: Step, plan: ShardPlan, *state: Any, rows: Sequence[Any] = ()
) -> Iterator[Any]:
    """Run a step. Yield the node, the table, then its notes and bytes; after `write` the node, None, and a `Done`.

    `state` is what the steps before have left: table and notes; for `write`, the prepared table, the one that `infer`
    has left, which has no images, and its notes. `rows` refers to what `RowReader` has read for `prepare`.
    """
    yield ray.get_runtime_context().get_node_id()
    with deadline(timeout_s), provided(plan, fetch_rows(rows)):
        table, notes = split(compute(load_steps(recipe), step, plan, *state))
    yield table  # no `yield from`: Ray sends values into the generator
    yield notes


def compute(steps: Steps, step: Step, plan: ShardPlan, *state: Any) -> Any:
    """Return the result of a step."""
    if step == "prepare":
        return steps.prepare(plan)
    if step == "infer":
        return steps.infer_without_images(plan, *state)
    prepared, inferred, notes = state
    return steps.write(plan, *steps.add_images(inferred, prepared, notes))


def rescue_step(recipe: bytes, timeout_s: float, limit: int | None, step: Step, plan: ShardPlan, *state: Any) -> Any:
    """Run a step in child processes, to find the rows that end its process; yield what `run_step` does."""
    yield ray.get_runtime_context().get_node_id()
    with deadline(RESCUE_TIMEOUTS * timeout_s):
        if step == "write":
            prepared, inferred, notes = state
            state = load_steps(recipe).add_images(inferred, prepared, notes)
        result = Rescue(pickle.loads(recipe), timeout_s, limit).run(step, plan, *state)
        if step == "infer":
            result = without_images(result[0]), result[1]
        table, notes = split(result)
    yield table  # no `yield from`: Ray sends values into the generator
    yield notes


def split(result: Any) -> tuple[Any, Any]:
    """Return the table of a step, and what the driver fetches: the notes and the bytes of the table, or the `Done`."""
    if isinstance(result, Done):
        return None, result
    table, notes = result
    return table, (notes, table.nbytes)


class ModelWorker:
    """An actor that grounds and scores shards, one at a time, after `load`: alone, or in groups that share batches.

    Shards of several groups may alternate. A group is named by a pair: its number, and that of its run, since a failed
    group is run again from its start.
    """

    def __init__(self, recipe: bytes, timeout_s: float) -> None:
        self.recipe, self.timeout_s = recipe, timeout_s
        self.groups: dict[tuple[int, int], OpenGroup] = {}

    def load(self) -> Iterator[Any]:
        """Yield the node, then load the models and yield None."""
        yield ray.get_runtime_context().get_node_id()
        with deadline(self.timeout_s):
            load_steps(self.recipe).load("infer")
        yield None

    def infer(self, plan: ShardPlan, *state: Any) -> Iterator[Any]:
        """Run the step `infer` on a shard alone."""
        yield from run_step(self.recipe, self.timeout_s, "infer", plan, *state)

    def feed(self, key: tuple[int, int], n_before: int, plan: ShardPlan, *state: Any) -> Iterator[Any]:
        """Add a shard to a group after `n_before` others; yield the node, then table and notes of finished shards."""
        yield ray.get_runtime_context().get_node_id()
        with deadline(self.timeout_s):
            if n_before == 0:
                self.groups[key] = OpenGroup(load_steps(self.recipe))
            for index, table, notes in self.groups[key].add(n_before, plan, *state):
                yield table
                yield index, notes

    def finish(self, key: tuple[int, int]) -> Iterator[Any]:
        """Finish a group; yield the node, then table and notes of the remaining shards."""
        yield ray.get_runtime_context().get_node_id()
        with deadline(self.timeout_s):
            for index, table, notes in self.groups.pop(key).finish():
                yield table
                yield index, notes

    def forget(self, key: tuple[int, int]) -> None:
        """Drop a group."""
        if (group := self.groups.pop(key, None)) is not None:
            group.close()
