"""Events of the steps of shards: runners report them, and whoever shows the progress or exports metrics follows them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final


class Follower:
    """Receives the events of a job, all in the thread of the runner. Subclasses override what they follow."""

    def begun(self, index: int, step: str, n_rows: int) -> None:
        """Note that a worker has begun a step of a shard; steps after it count as not done."""

    def ended(self, index: int, step: str, seconds: float | None) -> None:
        """Note the end of a step, which took `seconds` without the loading of models; None: not measured by the worker."""

    def lost(self, index: int) -> None:
        """Note that the running step of a shard has failed, or its worker has died."""

    def finished(self, result: Any) -> None:
        """Note the `Done`, or the record of the failure, of a shard."""

    def models(self, n: int, n_busy: int) -> None:
        """Note the number of model workers that are ready, and of those that compute; called every few seconds."""


_FOLLOWERS: Final[list[Follower]] = []


@contextmanager
def followed_by(follower: Follower) -> Iterator[None]:
    """Send the events to `follower` for the `with` block."""
    _FOLLOWERS.append(follower)
    try:
        yield
    finally:
        _FOLLOWERS.remove(follower)


def begun(index: int, step: str, n_rows: int) -> None:
    """Report the beginning of a step."""
    for follower in tuple(_FOLLOWERS):
        follower.begun(index, step, n_rows)


def ended(index: int, step: str, seconds: float | None = None) -> None:
    """Report the end of a step."""
    for follower in tuple(_FOLLOWERS):
        follower.ended(index, step, seconds)


def lost(index: int) -> None:
    """Report the failure of a step."""
    for follower in tuple(_FOLLOWERS):
        follower.lost(index)


def finished(result: Any) -> None:
    """Report the end of a shard."""
    for follower in tuple(_FOLLOWERS):
        follower.finished(result)


def models(n: int, n_busy: int) -> None:
    """Report the number of model workers, and of those that compute."""
    for follower in tuple(_FOLLOWERS):
        follower.models(n, n_busy)
