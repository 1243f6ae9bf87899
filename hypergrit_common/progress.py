"""Progress of a loop: a bar on a terminal, else a line in the log now and then, also while no item is done."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from tqdm import tqdm

from hypergrit_common.cli import logs_json
from hypergrit_common.text import counted, duration_text

logger = logging.getLogger("hypergrit")

Item = TypeVar("Item")
FIRST_S: Final = 5.0
"""Seconds before the first line; each pause is twice as long as the one before, up to INTERVAL_S."""
INTERVAL_S: Final = 60.0


def has_bar() -> bool:
    """Return True if the standard error is a terminal that shows a bar, False if it gets lines of a log."""
    return sys.stderr.isatty() and not logs_json()


@contextmanager
def now_and_then(show: Callable[[], None], first_s: float, most_s: float) -> Iterator[None]:
    """Call `show` in a thread after `first_s` seconds, then after pauses that double up to `most_s`."""
    end = threading.Event()

    def run() -> None:
        pause = min(first_s, most_s)
        while not end.wait(pause):
            show()
            pause = min(2 * pause, most_s)

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def tracked(
    items: Iterable[Item], total: int, text: str, unit: str = "shard", quiet: bool = False, most_s: float = INTERVAL_S
) -> Iterator[Item]:
    """Yield the items and show how many of `total` are done, as `text: 2 of 3 shards`, at most every `most_s` seconds.

    A loop that ends before the first line gets none.
    """
    if quiet or has_bar():
        yield from tqdm(items, text, total, unit=f" {unit}s", disable=quiet, smoothing=0)
        return
    n_done, n_lines, start = 0, 0, time.monotonic()

    def show() -> None:
        nonlocal n_lines
        n_lines += 1
        left = (time.monotonic() - start) * (total - n_done) / n_done if n_done else 0.0
        about = f", about {duration_text(left)} left" if left else ""
        values = {"text": text, "finished": n_done, "total": total}
        logger.info("%s: %s of %s%s", text, f"{n_done:,}", counted(total, unit), about, extra={"progress": values})

    with now_and_then(show, FIRST_S, most_s):
        for item in items:
            yield item
            n_done += 1
    if n_lines:
        show()
