"""A local server that speaks the protocol of OpenAI, in place of a vision-language model."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hypergrit_common import endpoint
from tests.pipeline.hub import run_server

Answer = str | Callable[[dict[str, Any]], str]
"""The content of a message, or a function from the body of the request to it."""


class Model(ThreadingHTTPServer):
    """Answers each request with the next of `answers` (status, answer), the last forever. `seen` has status, path, headers, body."""

    def __init__(self, *answers: tuple[int, Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = list(answers)
        self.seen: list[tuple[int, str, dict[str, str], dict[str, Any]]] = []
        self.lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"openai:http://127.0.0.1:{self.server_address[1]}/v1#some/vlm"


class Handler(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            status, answer = self.server.answers[0]
            if len(self.server.answers) > 1:
                self.server.answers.pop(0)
            self.server.seen.append((status, self.path, dict(self.headers), body))
        text = answer if isinstance(answer, str) else answer(body)
        data = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(server: Model) -> Iterator[Model]:
    """Serve until the end of the context, with pauses of a millisecond between attempts."""
    with pytest.MonkeyPatch.context() as patch, run_server(server):
        patch.setattr(endpoint, "PAUSE_S", 0.001)
        yield server
