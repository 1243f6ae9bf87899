"""Numbers of errors come from the system, never from what a server sends."""

import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from pipeline.stages.download.hosts import error_number
from pipeline.stages.download.stage import Download
from tests.pipeline.stages.download.rows import config, reasons, table

NO_FILES = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def connector_error(error: OSError) -> aiohttp.ClientConnectorError:
    key: Any = None
    return aiohttp.ClientConnectorError(key, error)


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (NO_FILES, errno.EMFILE),
        (connector_error(NO_FILES), errno.EMFILE),
        (connector_error(OSError("Multiple exceptions: [Errno 111] refused, [Errno 24] no files")), errno.EMFILE),
        (connector_error(OSError("Multiple exceptions: [Errno 99] no, [Errno 111] refused")), errno.ECONNREFUSED),
        (caused_by(aiohttp.ClientError("no"), NO_FILES), errno.EMFILE),
        (caused_by(aiohttp.ClientError("no"), BlockingIOError(errno.EAGAIN, "not yet")), 0),
        (caused_by(aiohttp.ClientError("no"), ExceptionGroup("two", [NO_FILES, ValueError()])), errno.EMFILE),
        (ConnectionRefusedError(errno.ECONNREFUSED, "no"), errno.ECONNREFUSED),
        (socket.gaierror(24, "no"), 0),
        (aiohttp.ServerDisconnectedError("[Errno 24]"), 0),
        (aiohttp.ClientPayloadError("Multiple exceptions: [Errno 24]"), 0),
        (caused_by(aiohttp.ClientError(), ValueError("[Errno 24]")), 0),
    ],
)
def test_only_errors_of_the_system_have_a_number(error: Exception, number: int) -> None:
    assert error_number(error) == number


@pytest.fixture
def liar() -> Iterator[int]:
    """The port of a server that breaks off after a head with the number of a lack."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):  # closed at the end of the test
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 200 [Errno 24]\r\nX: y\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def test_a_server_that_claims_a_lack_costs_only_its_row(liar: int) -> None:
    found = Download(config(retries=0))(table(f"http://127.0.0.1:{liar}/a.jpg"))
    assert reasons(found) == ["connection_error"]
    assert found["detail"].to_pylist() == ["Server disconnected"]
