"""The exception for errors that the user can fix."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """An error that the user can fix; the message names the file, key or row, and the fix.

    Commands print the message without a traceback and exit with code 2.
    """


@contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """Prepend `prefix` to the message of any UserError raised inside.

    For code that does not have the full name of a setting: `KEY: ` for a value, `GROUP.` for a configuration whose
    messages begin with a field name.
    """
    try:
        yield
    except UserError as error:
        raise UserError(f"{prefix}{error}") from error
