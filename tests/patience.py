"""How long tests wait on a busy machine."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

PATIENCE_S: Final = 240.0
"""A busy machine may need minutes for what takes a second on a quiet one; pytest ends a test that hangs."""
COMMAND_S: Final = 550.0
"""Time limit of a command that takes a minute on a quiet machine: just below that of a test."""


def wait_until(happens: Callable[[], object]) -> None:
    """Wait until `happens()` is true. Raises AssertionError after PATIENCE_S."""
    end = time.monotonic() + PATIENCE_S
    while not happens():
        assert time.monotonic() < end, f"not within {PATIENCE_S:.0f} s"
        time.sleep(0.02)


@contextlib.contextmanager
def linear_time() -> Iterator[None]:
    """Check that the body needs less than a minute of CPU time: for inputs that take seconds, and far more in quadratic time.

    CPU time, since other processes may keep the cores busy.
    """
    start = time.process_time()
    yield
    assert time.process_time() - start < 60
