"""The code that runs in Ray's workers. A step is a generator: its first value, the node, tells that it has begun."""

import faulthandler
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import cv2
import ray

from pipeline.faults.fault import BrokenProcessError
from pipeline.read.types import ShardPlan
from pipeline.rescue.search import Rescue
from pipeline.rescue.server import BROKEN
from pipeline.run import Done, Step, Steps

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


def run_step(recipe: bytes, timeout_s: float, step: Step, plan: ShardPlan, *state: Any) -> Iterator[Any]:
    """Run a step. Yield the node, then the table and the notes; after `write`, None and a `Done`."""
    yield ray.get_runtime_context().get_node_id()
    with deadline(timeout_s):
        result = getattr(load_steps(recipe), step)(plan, *state)
    table, notes = split(result)  # no `yield from`: Ray sends values into the generator
    yield table
    yield notes


def rescue_step(recipe: bytes, timeout_s: float, limit: int | None, step: Step, plan: ShardPlan, *state: Any) -> Any:
    """Run a step in child processes, to find the rows that end its process; yield what `run_step` does."""
    yield ray.get_runtime_context().get_node_id()
    with deadline(RESCUE_TIMEOUTS * timeout_s):
        result = Rescue(pickle.loads(recipe), timeout_s, limit).run(step, plan, *state)
    table, notes = split(result)  # no `yield from`: Ray sends values into the generator
    yield table
    yield notes


def split(result: Any) -> tuple[Any, Any]:
    """Return the table and the notes of a step as two objects, so that the driver can fetch the notes alone."""
    return (None, result) if isinstance(result, Done) else result


class ModelWorker:
    """An actor that grounds and scores shards, one at a time, after `load`."""

    def __init__(self, recipe: bytes, timeout_s: float) -> None:
        self.recipe, self.timeout_s = recipe, timeout_s

    def load(self) -> Iterator[Any]:
        """Yield the node, then load the models and yield None."""
        yield ray.get_runtime_context().get_node_id()
        with deadline(self.timeout_s):
            load_steps(self.recipe).load("infer")
        yield None

    def infer(self, plan: ShardPlan, *state: Any) -> Iterator[Any]:
        """Run the step `infer`."""
        yield from run_step(self.recipe, self.timeout_s, "infer", plan, *state)
