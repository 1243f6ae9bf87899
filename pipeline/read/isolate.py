"""Process one row such that an exception costs this row alone."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from common.remote import store_errors
from pipeline.faults.fault import describe, format_traceback, is_fault

Result = TypeVar("Result")


class RowFault(NamedTuple):
    """The exception of a row."""

    detail: str
    traceback: str


def isolated(process: Callable[[], Result]) -> Result | RowFault:
    """Return the result of `process`, or a RowFault if it raises twice: one failure alone may be transient.

    Errors of a file or store are raised, since they are not the fault of a row.
    """
    first = attempt(process)
    return attempt(process) if isinstance(first, RowFault) else first


def attempt(process: Callable[[], Result]) -> Result | RowFault:
    """Return the result of `process`, or a RowFault if it raises. Raises errors of a file or store."""
    try:
        return process()
    except store_errors():
        raise
    except BaseException as error:
        if not is_fault(error):
            raise
        return RowFault(describe(error), format_traceback(error))
