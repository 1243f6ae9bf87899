import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import fsspec
import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.remote import open_file
from tests.pipeline.hub import served
from tests.trainer.data.loading import assert_batches_equal, small_loader, take


class RangeHandler(BaseHTTPRequestHandler):
    """Serves the files of a folder with range requests, which the handler of the standard library ignores."""

    folder: Path
    ranges = True

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        content = (self.folder / self.path.strip("/")).read_bytes()
        requested = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        part = content[int(requested[1]) : int(requested[2]) + 1] if requested and self.ranges else content
        self.send_response(206 if requested and self.ranges else 200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Accept-Ranges", "bytes")
        if requested and self.ranges:
            self.send_header("Content-Range", f"bytes {requested[1]}-{requested[2]}/{len(content)}")
        self.end_headers()
        if body:
            self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server_url(shards: Path) -> Iterator[str]:
    RangeHandler.folder, RangeHandler.ranges = shards, True
    with served(RangeHandler) as url:
        yield url


def test_batches_of_remote_shards_equal_those_of_local_ones(shards: Path) -> None:
    fs = fsspec.filesystem("memory")
    for path in shards.iterdir():
        fs.pipe(f"/loader/{path.name}", path.read_bytes())
    assert_batches_equal(take(small_loader("memory://loader"), 4), take(small_loader(shards), 4))


def test_workers_read_from_a_store_that_their_parent_used_before_it_forked(shards: Path, server_url: str) -> None:
    urls = ",".join(f"{server_url}/0000{i}.tar" for i in range(4))
    assert_batches_equal(take(small_loader(urls, workers=2), 3), take(small_loader(shards), 3))


def test_a_file_of_a_web_server_is_opened_by_one_request(
    shards: Path, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = list[str](), RangeHandler.answer
    monkeypatch.setattr(
        RangeHandler, "answer", lambda self, body: (asked.append(self.command), answer(self, body=body))[1]
    )
    with open_file(f"{server_url}/00000.tar") as file:
        assert asked == ["GET"]  # no HEAD for the size, which the first answer tells
        assert file.read() == (shards / "00000.tar").read_bytes()


def test_store_without_range_requests_raises_a_user_error(shards: Path, server_url: str) -> None:
    source = small_loader(f"{server_url}/00000.tar")
    RangeHandler.ranges = False
    with pytest.raises(UserError, match="range requests"):
        take(source, 1)
