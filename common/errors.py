"""The one exception whose message is meant for the user."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Something the user can mend: the message names the file, key or row, and what to do. Shown without a traceback; exit code 2."""


@contextmanager
def under(key: str) -> Iterator[None]:
    """What code that knows no keys says of a value, said with the key that the value stands under."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{key}: {error}") from error
