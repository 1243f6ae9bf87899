"""Files that are not what their names say, and web servers that send no parts of files."""

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hypergrit_common import remote
from pipeline.read.listing import choose_files, format_of
from tests.pipeline.hub import served
from tests.pipeline.read.test_stage import ROWS, error_message, read_all, write

MISTAKEN = {
    "a pointer of git LFS, not the file: run git lfs pull": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\n",
    "a pointer of Xet": b"# xet version 0\nfilesize = 3\nhash = 'ab'\n",
    "a web page": b"\n<!DOCTYPE html><html><body>Sign in</body></html>",
    "gzip data (.gz)": gzip.compress(b"{}"),
    "a zip file (.zip)": b"PK\3\4" + bytes(30),
}


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "json", "csv", "tsv.bz2", "tar"])
@pytest.mark.parametrize("kind", MISTAKEN)
def test_a_file_that_is_something_else_is_named(tmp_path: Path, kind: str, suffix: str) -> None:
    (tmp_path / f"a.{suffix}").write_bytes(MISTAKEN[kind])
    assert f"a.{suffix}: it is {kind}" in error_message(tmp_path)


def test_an_empty_file_and_a_tar_with_a_wrong_name_are_named_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
    contents = {"a.tar.gz": file.getvalue(), "b.tar": gzip.compress(file.getvalue()), "c.parquet": b""}
    expected = {"a.tar.gz": "a tar (.tar)", "b.tar": "gzip data (.gz)", "c.parquet": "empty"}
    for name, kind in expected.items():
        (tmp_path / name).write_bytes(contents[name])
        assert f"{name}: it is {kind} (" in error_message(tmp_path / name)
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(b"{}" * 99)[:20])
    assert "it is" not in error_message(tmp_path / "e.jsonl.gz")


class Server(BaseHTTPRequestHandler):
    """Sends whole files, those below /gzip/ compressed, although nobody asked for it."""

    protocol_version = "HTTP/1.1"
    folder: Path

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        content = (self.folder / self.path.partition("?")[0].rpartition("/")[2]).read_bytes()
        self.send_response(200)
        if self.path.startswith("/gzip/"):
            content = gzip.compress(content)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    Server.folder = tmp_path
    with served(Server) as url:
        yield url


@pytest.mark.parametrize("place", ["plain", "gzip"])
def test_files_of_a_server_without_parts_are_read_as_a_whole(tmp_path: Path, server: str, place: str) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    write(tmp_path / "a.jsonl", [row | {"more": "x" * 1000} for row in ROWS])
    for name in ("a.parquet", "a.jsonl"):
        found = [row["caption_original"] for row in read_all(f"{server}/{place}/{name}")]
        assert found == [row["caption"] for row in ROWS]


def test_the_query_and_the_fragment_of_a_url_are_no_part_of_its_name(tmp_path: Path, server: str) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.PARQUET")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)))
    (tmp_path / "c.tgz").write_bytes(gzip.compress(b"not a tar"))
    for name in ("a.PARQUET?X-Amz-Signature=1f&x=.csv", "b.jsonl.gz?sig=a/b/", "b.jsonl.gz?v=3#latest.json"):
        assert [row["caption_original"] for row in read_all(f"{server}/{name}")] == [row["caption"] for row in ROWS]
    (tmp_path / "d.bin").write_bytes(b"")
    text = error_message(f"{server}/d.bin?sig=t0k3n")
    assert f"input file '{server}/d.bin' has no known format" in text
    assert "t0k3n" not in text
    names = ("s3://b/a?.csv", "/data/b#1.tar", "http://h/t/", "http://h/t/?C=N;O=D.csv", "/q?a.b/")
    assert [format_of(name) for name in names] == ["csv", "tar", "folder", None, "folder"]


def test_a_file_to_which_a_page_links_twice_is_read_once() -> None:
    links = ["a.csv.gz", "a.csv.gz?download=1", "b.csv.gz?v=2#x", "b.csv.gz?v=1", "?C=N;O=D"]
    chosen, unread = choose_files([f"https://h/in/{link}" for link in links])
    assert chosen == ["https://h/in/a.csv.gz", "https://h/in/b.csv.gz?v=1"]
    assert len(unread) == 3
    assert choose_files(["in/a?.csv", "in/a?1.csv", "in/a#.csv"])[0] == ["in/a#.csv", "in/a?.csv", "in/a?1.csv"]


def test_a_large_file_of_such_a_server_is_an_error_with_the_fix(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "WHOLE_BYTES", 500)
    write(tmp_path / "a.jsonl", ROWS)
    message = error_message(f"{server}/plain/a.jsonl")
    assert "more than 500 bytes, and its server sends no parts of files; download it first" in message
