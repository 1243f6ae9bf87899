"""The exception for errors that the user can fix, and errors for which the machine is to blame."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MACHINE_ERRORS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EADDRNOTAVAIL, errno.ENETDOWN}
    | {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
)
"""Lack of open files, memory, processes, ports, network or disk space (EFBIG: above the file-size limit)."""


NO_THREAD: Final = "can't start new thread"
"""Start of the message of the RuntimeError for a lack of threads."""


class UserError(Exception):
    """An error that the user can fix; the message names the file, key or row, and the fix.

    Commands print the message without a traceback and exit with code 2.
    """


class NotFiniteError(UserError):
    """A model computes values that are not finite, so a result would be incomplete. Commands exit with code 3."""


@contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """Prepend `prefix` to the message of any UserError raised inside.

    The raising code often does not know the full name of a setting. Pass `KEY: ` if it checks a value, and `GROUP.` if
    its messages begin with the name of a field of that group.
    """
    try:
        yield
    except UserError as error:
        raise type(error)(f"{prefix}{error}") from error


def is_machine_error(error: BaseException) -> bool:
    """Return True if the machine lacks something, also threads, so that the same call may succeed later."""
    if isinstance(error, RuntimeError):
        return str(error).startswith(NO_THREAD)
    return isinstance(error, OSError) and error.errno in MACHINE_ERRORS
