"""Calls of one function on many items as Ray tasks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import ray

from pipeline.config import RayConfig
from pipeline.on_ray.run import connect

Item = TypeVar("Item")
Result = TypeVar("Result")

EXTRA: Final = 2
"""Calls beyond those that keep the cluster busy."""


def map_on_ray(
    work: Callable[[Item], Result], items: Sequence[Item], config: RayConfig
) -> Iterator[tuple[Item, Result | Exception]]:
    """Yield each item with the result or the exception of its call, in order of completion.

    Ray repeats a call whose node or process is lost. Raises UserError if there is no cluster.
    """
    connect(config)
    try:
        remote: Any = ray.remote(work).options(num_cpus=1, max_retries=config.retries)
        waiting, running = list(reversed(items)), dict[Any, Item]()
        while waiting or running:
            limit = config.cpu_workers or int(ray.cluster_resources().get("CPU", 0)) + EXTRA
            while waiting and len(running) < max(limit, 1):
                item = waiting.pop()
                running[remote.remote(item)] = item
            ready, _ = ray.wait(list(running), num_returns=1)
            for reference in ready:
                item = running.pop(reference)
                try:
                    yield item, ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    yield item, error.cause if isinstance(error.cause, Exception) else error
                except ray.exceptions.RayError as error:
                    yield item, error
    finally:
        ray.shutdown()
