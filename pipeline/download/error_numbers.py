"""Numbers of the system's errors behind an exception. Text never decides: a server can put `[Errno 24]` into its answer."""

import errno
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Final

import aiohttp

from common.errors import MACHINE_ERRORS

JOINED: Final = "Multiple exceptions: "
"""Start of the message in which aiohappyeyeballs joins those of several addresses. All of them are from this machine."""
NUMBER: Final = re.compile(r"\[Errno (\d{1,5})\]")


def error_number(error: BaseException) -> int:
    """Return the number of an error of the system, that of a lack if there are several, and 0 without one.

    EADDRNOTAVAIL counts only alone: a machine without IPv6 reports it for one of several addresses.
    """
    numbers = error_numbers(error)
    numbers = [number for number in numbers if number != errno.EADDRNOTAVAIL] or numbers
    return next((number for number in numbers if number in MACHINE_ERRORS), numbers[0] if numbers else 0)


def error_numbers(error: BaseException) -> list[int]:
    """Return the numbers of an exception, of its causes and, after attempts at several addresses, of each of them."""
    return list(dict.fromkeys(number for found in _walk(error, set()) for number in _numbers(found)))


def _walk(error: BaseException, seen: set[int]) -> Iterator[OSError]:
    """Yield the errors of the system of which an exception consists, the outermost first."""
    if id(error) in seen:
        return
    seen.add(id(error))
    if isinstance(error, OSError):
        yield error
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _walk(part, seen)
    if isinstance(error, aiohttp.ClientConnectorError):
        yield from _walk(error.os_error, seen)
    for origin in (error.__cause__, error.__context__):
        # A socket that is not ready raises BlockingIOError, which is no failure.
        if isinstance(origin, OSError | BaseExceptionGroup) and not isinstance(origin, BlockingIOError):
            yield from _walk(origin, seen)


def _numbers(error: OSError) -> list[int]:
    if isinstance(error, ssl.SSLError | socket.gaierror):  # their numbers are not those of the system
        return []
    if isinstance(error.errno, int):
        return [error.errno]
    if type(error) is OSError and str(error).startswith(JOINED):
        return list(map(int, NUMBER.findall(str(error))))
    return []
