"""Evidence of attempts about their host: kept-alive connections, and rows whose time was used up elsewhere."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from pipeline.stages.download.stage import Download
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import jpeg

Answer = Callable[[socket.socket, int, str], None]
"""Sends the answer to a request: connection, number of the request on it, path."""


def send(connection: socket.socket, status: str = "200 OK", body: bytes = b"", header: str = "X: y") -> None:
    head = f"HTTP/1.1 {status}\r\n{header}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)


@contextmanager
def serve(answer: Answer, address: str = "127.0.0.1") -> Iterator[int]:
    """A server with a thread per connection; yields its port."""
    listener = socket.create_server((address, 0), backlog=128)

    def talk(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            n = 0
            while data := connection.recv(4096):
                answer(connection, n, data.split()[1].decode())
                n += 1

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_a_time_out_on_an_idle_connection_is_repeated_on_a_new_one() -> None:
    def answer(connection: socket.socket, n: int, _: str) -> None:
        if n == 2:
            time.sleep(5)
        send(connection, body=jpeg())

    with serve(answer) as port:
        download = Download(config(timeout_s=2.0, connect_timeout_s=1.5, concurrency=1))
        urls = [f"http://127.0.0.1:{port}/{i}" for i in range(5)]
        assert reasons(download(table(*urls[:2]))) == [None, None]
        assert reasons(download(table(*urls[2:]))) == [None] * 3  # the host is new to this table
        download.close()


def test_idle_connections_show_that_their_host_accepts_more() -> None:
    """The rows of the second table do not wait for the answer to the first four of them."""
    all_arrived = threading.Barrier(4)

    def answer(connection: socket.socket, *_: object) -> None:
        all_arrived.wait()
        send(connection, body=jpeg())

    with serve(answer) as port:
        download = Download(config())
        for n in (4, 12):
            all_arrived = threading.Barrier(n)
            assert reasons(download(table(*(f"http://127.0.0.1:{port}/{i}" for i in range(n))))) == [None] * n
        download.close()


def test_rows_whose_time_others_used_up_do_not_count_against_a_host() -> None:
    """Of 16 rows, a redirector takes nearly all time, and then sends them to a host that needs 1.2 s."""

    def slow(connection: socket.socket, _: int, path: str) -> None:
        time.sleep(1.2)
        send(connection, body=jpeg())

    with ExitStack() as stack:
        innocent = stack.enter_context(serve(slow, "127.0.0.2"))
        seen: set[str] = set()

        def redirect(connection: socket.socket, _: int, path: str) -> None:
            if path not in seen:
                seen.add(path)
                send(connection, "503 No", header="Retry-After: 2")
            else:
                time.sleep(0.5)
                send(connection, "302 Found", header=f"Location: http://127.0.0.2:{innocent}{path}")

        hostile = stack.enter_context(serve(redirect))
        hosts = ("127.0.0.1", "127.0.0.2")
        download = Download(config(allowed_private_hosts=hosts, timeout_s=3.0, connect_timeout_s=0.3, deadline_s=3.5))
        assert set(reasons(download(table(*(f"http://127.0.0.1:{hostile}/{i}" for i in range(16)))))) == {"timeout"}
        found = download(table(*(f"http://127.0.0.2:{innocent}/b{i}" for i in range(16))))
        assert reasons(found) == [None] * 16
        download.close()
