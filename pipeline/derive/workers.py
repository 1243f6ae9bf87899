"""Calls of one function on many shards, in processes of this machine or on a Ray cluster."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from common.errors import UserError
from common.processes import end_with_parent
from common.progress import tracked
from pipeline.config import PipelineConfig, RayConfig

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_shards(
    work: Callable[[Item], Result], items: Sequence[Item], config: RayConfig
) -> Iterator[tuple[Item, Result | Exception]]:
    """Yield each item with the result or the exception of its call, in order of completion; `work` is picklable.

    Local processes end with this one. Raises UserError if one of them dies, or if there is no Ray cluster.
    """
    if not items:
        return
    if config.runner == "ray":
        from pipeline.on_ray.map import map_on_ray

        yield from map_on_ray(work, items, config)
        return
    n_processes = min(config.cpu_workers or os.cpu_count() or 1, len(items))
    if n_processes <= 1:
        for item in items:
            yield item, attempt(work, item)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, context, initializer=end_with_parent, initargs=(os.getpid(),)) as pool:
        futures = {pool.submit(work, item): item for item in items}
        try:
            for future in as_completed(futures):
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    raise UserError(
                        "a process died, probably for lack of memory; finished shards are kept: run the command again, "
                        "with a lower ray.cpu_workers if it happens again"
                    ) from error
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield futures[future], future.result() if error is None else error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def with_progress(results: Iterable[Item], n_shards: int, text: str, config: PipelineConfig) -> Iterator[Item]:
    """Yield one result for each shard, and show the progress as the settings of the log demand."""
    return tracked(results, n_shards, text, quiet=config.quiet, most_s=config.log.interval_s)


@contextmanager
def connected(config: RayConfig) -> Iterator[None]:
    """Join the Ray cluster once for all calls in the `with` block; local processes need nothing. Raises UserError."""
    if config.runner == "local":
        yield
        return
    from pipeline.on_ray.run import joined

    with joined(config):
        yield


def attempt(work: Callable[[Item], Result], item: Item) -> Result | Exception:
    """Return the result of a call, or its exception."""
    try:
        return work(item)
    except Exception as error:
        return error
