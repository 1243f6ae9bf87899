"""Calls of one function on many items as Ray tasks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import ray

from pipeline.config import RayConfig
from pipeline.on_ray.cluster import POLL_S, Cluster
from pipeline.on_ray.run import joined

Item = TypeVar("Item")
Result = TypeVar("Result")

EXTRA: Final = 2
"""Calls beyond those that keep the cluster busy."""
TASK: Final = {"CPU": 1.0}


def map_on_ray(
    work: Callable[[Item], Result], items: Sequence[Item], config: RayConfig
) -> Iterator[tuple[Item, Result | Exception]]:
    """Yield each item with the result or the exception of its call, in order of completion.

    Ray repeats a call whose node or process is lost. Raises UserError if there is no cluster.
    """
    with joined(config):
        cluster = Cluster()
        remote: Any = ray.remote(call).options(num_cpus=TASK["CPU"], max_retries=config.retries)
        cluster.poll()
        shared = ray.put(work)  # sent to each node once; `work` may hold a large evaluation set
        waiting, running = list(reversed(items)), dict[Any, Item]()
        while waiting or running:
            limit = config.cpu_workers or int(cluster.total("CPU")) + EXTRA
            while waiting and len(running) < limit:
                item = waiting.pop()
                running[remote.remote(shared, item)] = item
            ready, _ = ray.wait(list(running), num_returns=1, timeout=POLL_S)
            for reference in ready:
                yield running.pop(reference), result_of(reference)
            if cluster.poll():
                cluster.warn([TASK] if running else [])


def call(work: Callable[[Item], Result], item: Item) -> Result:
    """Return the result of a call: Ray runs functions, but no other callables, as tasks."""
    return work(item)


def result_of(reference: Any) -> Any:
    """Return the result of a finished task, or its exception."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return error.cause if isinstance(error.cause, Exception) else error
    except ray.exceptions.RayError as error:
        return error
