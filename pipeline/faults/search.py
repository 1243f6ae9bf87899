"""Find the rows on which a computation fails, by bisection."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Failure = TypeVar("Failure")


def find_faulty(
    rows: Sequence[int], probe: Callable[[Sequence[int]], Failure | None], limit: int | None = None
) -> dict[int, Failure]:
    """Return {row: failure} of the rows on which `probe` fails, given that it failed on all `rows` together.

    `probe` computes some of the rows, and returns the failure or None. A row is faulty if it fails twice on its own;
    one failure alone may be transient. The result is empty if no single row is at fault. The search ends early when it
    has found more than `limit` rows.

    >>> find_faulty(range(100), lambda rows: "bad" if {7, 93} & set(rows) else None)
    {7: 'bad', 93: 'bad'}
    """
    found: dict[int, Failure] = {}
    suspects = [list(rows)]
    while suspects and (limit is None or len(found) <= limit):
        part = suspects.pop()
        if len(part) > 1:
            middle = len(part) // 2
            halves = (part[middle:], part[:middle])  # the first half is on top of the stack
            suspects += [half for half in halves if probe(half) is not None]
        elif part and (failure := probe(part)) is not None:
            found[part[0]] = failure
    return found
