"""A fault: the row, the stage and the error; and the exceptions with which a shard or a job ends."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from common.errors import UserError, is_machine_error
from schemas.status import INTERNAL_ERROR
from schemas.table import Drop

MAX_DETAIL: Final = 300
MAX_TRACEBACK: Final = 8000


class ShardError(Exception):
    """The failure of one shard for a known reason, such as an input file that has changed; other shards may succeed."""


class TooManyFaultsError(Exception):
    """More rows failed than `max_internal_errors` allows; the message holds the first traceback."""


class BrokenProcessError(Exception):
    """An error after which the process cannot compute anything: it has to end, and others take over its work."""


@dataclass(frozen=True)
class Fault:
    """A row that was dropped because a stage raised, crashed, hung or ran out of memory on it."""

    key: str
    stage: str
    detail: str
    traceback: str = ""

    @property
    def drop(self) -> Drop:
        """The drop of the row."""
        return Drop(INTERNAL_ERROR, self.detail)


def is_fault(error: BaseException) -> bool:
    """Return True if a row can be the cause of an exception, and others need not be affected.

    A lack of open files, memory or disk space is not the fault of a row, except a MemoryError, which one can cause.
    Rust extensions, such as tokenizers, raise panics that are not subclasses of Exception.
    """
    meant = (UserError, ShardError, TooManyFaultsError, BrokenProcessError, KeyboardInterrupt, SystemExit)
    return not (isinstance(error, (*meant, GeneratorExit)) or is_machine_error(error))


def describe(error: BaseException) -> str:
    """Return `TypeName: message` in one line of bounded length, with control characters escaped.

    >>> describe(ValueError("two\\nlines"))
    'ValueError: two\\\\nlines'
    """
    message = str(error)[: 2 * MAX_DETAIL].encode(errors="backslashreplace").decode()
    line = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)[:MAX_DETAIL]


def format_traceback(error: BaseException) -> str:
    """Return the last MAX_TRACEBACK characters of the traceback of an exception."""
    return "".join(traceback.format_exception(error))[-MAX_TRACEBACK:].encode(errors="backslashreplace").decode()


def check_limit(faults: Sequence[Fault], limit: int | None) -> None:
    """Raise TooManyFaultsError with the first traceback if there are more than `limit` faults."""
    if limit is not None and len(faults) > limit:
        first = faults[0]
        raise TooManyFaultsError(
            f"more than {limit} rows failed with an internal error (max_internal_errors); the first is row {first.key} "
            f"in stage {first.stage!r}:\n{first.traceback or first.detail}"
        )
