"""Calls of a function in threads, with results in order and bounded memory."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], n_threads: int, n_waiting: int
) -> Generator[Result, None, None]:
    """Yield `function(item)` for each item, in order; up to `n_threads` calls run concurrently.

    At most `n_waiting` items are taken before their results. Close the iterator to cancel calls that have not started.
    """
    left, waiting = iter(items), deque[Future[Result]]()
    with ThreadPoolExecutor(n_threads) as pool:
        try:
            waiting.extend(pool.submit(function, item) for item in islice(left, n_waiting))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(function, item) for item in islice(left, 1))
        finally:
            for future in waiting:
                future.cancel()
