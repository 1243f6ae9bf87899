"""The input of the sequences: eleven rows whose texts and pictures can be found again in any file, and their web server."""

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import cv2
import numpy as np

N_ROWS, ROWS_PER_SHARD = 11, 4
HOSTS = ("127.0.0.1", "127.0.0.2")
SECOND_HOST = (2, 9)
"""Rows whose pictures come from the second host."""
OUTAGES = (3, 8)
"""Rows whose pictures are unavailable while the web is down."""
LOST = (1,)
"""Rows whose URL is dead."""
TWINS = (5, 6)
"""Rows of a shard with the same picture."""


class Row(NamedTuple):
    """A row of the input."""

    id: str
    url: str
    caption: str


def word(row: int) -> str:
    """The word in all texts of a row, and in those of no other."""
    return f"zq{hashlib.sha256(b'%d' % row).hexdigest()[:6].translate(str.maketrans('0123456789', 'ghijklmnop'))}x"


def colour(row: int) -> tuple[int, int, int]:
    """The mean colour of the picture of a row, which no other picture has."""
    row = TWINS[0] if row in TWINS else row
    steps = (55, 128, 200)
    return steps[row % 3], steps[row // 3 % 3], steps[row // 9 % 3]


@cache
def picture(row: int) -> bytes:
    """The JPEG of a row."""
    row = TWINS[0] if row in TWINS else row
    pattern = np.random.default_rng(row).uniform(-30, 30, (6, 8, 1)).astype(np.float32)
    image = cv2.resize(pattern - pattern.mean(), (128, 96), interpolation=cv2.INTER_LINEAR)[..., None]
    pixels = np.clip(image + np.array(colour(row), np.float32), 0, 255).astype(np.uint8)
    return bytes(cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])[1])


def sha256_of(row: int) -> str:
    """The SHA-256 of the bytes that the server sends for a row."""
    return hashlib.sha256(picture(row)).hexdigest()


def row_of(row: int, port: int) -> Row:
    """A row of the input."""
    kind = "outage" if row in OUTAGES else "lost" if row in LOST else "picture"
    host = HOSTS[row in SECOND_HOST]
    name = word(row)
    caption = f"a {name} dog and number {row} of the cats on a red table"
    return Row(f"id-{name}", f"http://{host}:{port}/{kind}/{row}/{name}.jpg", caption)


def write_input(path: Path, port: int) -> None:
    """Write the rows."""
    rows = (row_of(row, port) for row in range(N_ROWS))
    path.write_text("".join(json.dumps(row._asdict()) + "\n" for row in rows))


class Handler(BaseHTTPRequestHandler):
    """Sends the pictures; with the file `down`, those of OUTAGES have the status 503."""

    protocol_version = "HTTP/1.1"
    down: Path

    def do_GET(self) -> None:
        kind, row = self.path.split("/")[1:3]
        status = 404 if kind == "lost" else 503 if kind == "outage" and self.down.exists() else 200
        body = picture(int(row)) if status == 200 else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def serve(folder: Path, writer: int) -> None:
    """Serve the pictures; write the port to a pipe."""
    Handler.down = folder / "down"
    first = ThreadingHTTPServer((HOSTS[0], 0), Handler)
    second = ThreadingHTTPServer((HOSTS[1], first.server_port), Handler)
    Thread(target=first.serve_forever, daemon=True).start()
    os.write(writer, b"%d" % first.server_port)
    second.serve_forever()


@contextmanager
def serving(serve: Callable[[int], None]) -> Iterator[int]:
    """Let a function serve in a process of its own, so that this one starts no thread; yield the port that it writes."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            serve(writer)
        finally:
            os._exit(1)
    try:
        yield int(os.read(reader, 10))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)
