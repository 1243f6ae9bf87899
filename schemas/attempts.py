"""Indices of the shards of pipeline.retry: each attempt at rows of a shard is a shard of its own beside it.

Attempt 0 is the job. Attempt a at rows of shard i has index a x RETRY_STEP + i, so that no attempt shares a file with
another one.
"""

from collections.abc import Iterable
from typing import Final

RETRY_STEP: Final = 10_000_000
"""Distance of the indices of two attempts at the same rows; a job has at most this many shards."""
MAX_ATTEMPT: Final = 200
"""The last attempt: indices of shards have 32 bits."""


def index_of(attempt: int, shard: int) -> int:
    """Return the index of an attempt at rows of shard `shard` of the job."""
    return attempt * RETRY_STEP + shard


def attempt_of(index: int) -> int:
    """Return the attempt to which a shard belongs, 0 for a shard of the job."""
    return index // RETRY_STEP


def shard_of(index: int) -> int:
    """Return the shard of the job whose rows a shard holds."""
    return index % RETRY_STEP


def later_attempts(index: int, indices: Iterable[int]) -> list[int]:
    """Return those of `indices` that are later attempts at rows of the same shard of the job as `index`."""
    return [other for other in indices if shard_of(other) == shard_of(index) and other > index]
