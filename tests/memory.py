"""How much memory Python objects take."""

import contextlib
import tracemalloc
from collections.abc import Iterator


@contextlib.contextmanager
def memory_below(n_bytes: int) -> Iterator[None]:
    """Check that the body never holds as many bytes of Python; Arrow has its own."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < n_bytes
    finally:
        tracemalloc.stop()
