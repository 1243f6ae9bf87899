"""The one exception whose message is meant for the user."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Something the user can mend: the message names the file, key or row, and what to do. Shown without a traceback; exit code 2."""


@contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """What code says that does not know where its values stand, said with that in front.

    Of a value that is `KEY: `; of a configuration, whose messages begin with its own fields, `GROUP.`.
    """
    try:
        yield
    except UserError as error:
        raise UserError(f"{prefix}{error}") from error
