"""The runner of tests: it computes shards in the process of the test, which may patch what the workers call.

Jobs that tests run with it are real ones, apart from the child process: `running_here` puts it in the place of the local
runner. A job or command that asks for two workers still has child processes.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from pipeline.config import RayConfig
from pipeline.faults import KNOWN, BrokenProcessError, RemoteError, describe, format_traceback
from pipeline.run import attempts
from pipeline.run.local import Worker, compute_in, compute_local
from pipeline.run.steps import Recipe
from pipeline.stages.download.stage import Download


class Here:
    """Answers the calls of a runner as `pipeline.faults.Child` does, from this process and without a time limit."""

    def __init__(self, recipe: Recipe) -> None:
        self.worker = Worker(recipe)

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        try:
            return getattr(self.worker, method)(*arguments)
        except (*KNOWN, BrokenProcessError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RemoteError(describe(error), format_traceback(error)) from error


class AtOnce(Executor):
    """Calls functions when they are submitted."""

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        future = Future[Any]()
        try:
            future.set_result(fn(*arguments, **more))
        except BaseException as error:
            future.set_exception(error)
        return future


def compute_here(plans: Sequence[Any], config: RayConfig, recipe: Recipe) -> Iterator[Any]:
    """Compute shards one after the other in this process; none is put off since its rows got no answer."""
    if config.cpu_workers == 2:
        yield from compute_local(plans, config, recipe)
        return
    here: Any = Here(recipe)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attempts, "LEAST", math.inf)
            yield from compute_in([here], AtOnce(), plans, config, recipe)
    finally:
        download = getattr(here.worker.steps, "_stages", {}).get("download")
        if isinstance(stage := getattr(download, "__self__", None), Download):
            stage.close()


@contextlib.contextmanager
def running_here() -> Iterator[None]:
    """Let the local runner be that of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.run.loop.compute_local", compute_here)
        yield
