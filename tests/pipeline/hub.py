"""A server that stands for the Hugging Face hub: it gives the files of FOLDER/OWNER/NAME, all at one commit."""

import hashlib
import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

COMMIT: Final = "89abcdef" * 5
API: Final = re.compile(r"/api/(?:models|datasets)/([\w.-]+/[\w.-]+)(/tree/.*|/revision/.*)?")
FILE: Final = re.compile(r"/(?:datasets/)?([\w.-]+/[\w.-]+)/resolve/[^/]+/(.+)")


class Hub(http.server.SimpleHTTPRequestHandler):
    """Answers what huggingface_hub asks: facts of a repository, its list of files, and files with their headers."""

    def log_message(self, *_: Any) -> None:
        return

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = self.path.partition("?")[0]
        if match := API.fullmatch(path):
            folder = Path(self.directory, match[1])
            files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
            names = [file.relative_to(folder).as_posix() for file in files]
            facts: Any = {"id": match[1], "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
            if (match[2] or "").startswith("/tree"):
                facts = [
                    {"type": "file", "path": name, "size": file.stat().st_size, "oid": etag(file)}
                    for name, file in zip(names, files, strict=True)
                ]
            self.send(json.dumps(facts).encode() if files else None, "RepoNotFound", {})
        elif (match := FILE.fullmatch(path)) and (file := Path(self.directory, match[1], match[2])).is_file():
            self.send(file.read_bytes(), "", {"X-Repo-Commit": COMMIT, "ETag": f'"{etag(file)}"'})
        else:
            self.send(None, "EntryNotFound", {"X-Repo-Commit": COMMIT})

    def send(self, body: bytes | None, error: str, headers: dict[str, str]) -> None:
        self.send_response(404 if body is None else 200)
        for name, value in {**headers, "Content-Length": str(len(body or b""))}.items():
            self.send_header(name, value)
        if body is None:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body or b"")


def etag(file: Path) -> str:
    """The hash that the hub gives for a large file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    """The address of a server of the repositories in a folder, until the end of the context."""
    with served(partial(Hub, directory=str(folder))) as url:
        yield url


@contextmanager
def served(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server on this machine that answers with `handler`, until the end of the context."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with run_server(server):
        yield f"http://127.0.0.1:{server.server_port}"


@contextmanager
def run_server(server: http.server.HTTPServer) -> Iterator[None]:
    """Serve in a thread until the end of the context."""
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
