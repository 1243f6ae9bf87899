"""The server gives only its own files, rows and images, to requests with the token."""

import csv
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from hypergrit_common.errors import UserError
from pipeline.explore.marks import MarkFile, marked_boxes
from pipeline.explore.rows import Shard
from pipeline.explore.server import CHANGED, is_own_name
from pipeline.explore.site import IMAGE_FILE, ROWS_FILE, read_output
from pipeline.output.ledger import read_images, read_manifests
from pipeline.output.store import Store
from tests.patience import PATIENCE_S
from tests.pipeline.commands.derive.outputs import kept, picture
from tests.pipeline.explore.conftest import TOKEN, Server
from tests.pipeline.explore.outputs import write_output

CATS = [kept(picture(i), source="s") for i in range(12)]
Answer = tuple[int, bytes, dict[str, str]]


def ask(server: Server, path: str, body: Any = None, token: str = TOKEN, **headers: str) -> Answer:
    """Status, body and headers of a request with the cookie; redirects are not followed."""
    url = f"http://127.0.0.1:{server.port}{path}"
    cookie = {"Cookie": f"hypergrit_{server.port}={token}", "Origin": f"http://127.0.0.1:{server.port}"}
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, cookie | headers)

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect)
    try:
        with opener.open(request, timeout=PATIENCE_S) as response:
            return response.status, response.read(), dict(response.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)


def data_folder(server: Server) -> str:
    return str(json.loads(ask(server, "/data/site.json")[1])["output"]["folder"])


def test_requests_without_the_token_or_with_another_host_are_refused(server: Server) -> None:
    folder = data_folder(server)
    for path in (
        "/",
        "/js/app.js",
        "/data/site.json",
        f"/{folder}/meta.json",
        "/marks",
        f"/{folder}/images/00000/000000.jpg",
    ):
        assert ask(server, path)[0] == 200, path
        assert ask(server, path, token="")[0] == ask(server, f"{path}?token=wrong", token="wrong")[0] == 403
        assert ask(server, path, Host=f"evil.example:{server.port}")[0] == 403
    status, _, headers = ask(server, f"/?token={TOKEN}", token="")
    assert (status, headers["Location"]) == (302, "/")
    for path in ("//evil.example/x", "/%5cevil.example/", "/\\evil.example", "/%2f%2fevil.example", "/%0d%0aX-Evil:1/"):
        status, _, headers = ask(server, f"{path}?token={TOKEN}", token="")
        assert (status, headers["Location"], headers.get("X-Evil")) == (302, "/", None), path
    assert "HttpOnly" in headers["Set-Cookie"]
    assert "SameSite=Strict" in headers["Set-Cookie"]


def test_every_answer_forbids_other_sources(server: Server) -> None:
    for path, token in (("/", TOKEN), ("/", ""), ("/nothing", TOKEN)):
        headers = ask(server, path, token=token)[2]
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
        assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    ["/../config.py", "/%2e%2e/config.py", "/js/../../config.py", "//etc/passwd", "/data/x/meta.json", "/js",
     "/{folder}/rows/00009-00000.json", "/{folder}/images/00000/000999.jpg", "/{folder}/images/00000/../000000.jpg",
     "/{folder}/images/00000/000002.jpg", "/data/00000000/rows/00000-00000.json", "/{folder}/../../site.py"],
)  # fmt: skip
def test_other_paths_do_not_exist(server: Server, path: str) -> None:
    assert ask(server, path.format(folder=data_folder(server)))[0] == 404


def test_names_of_other_servers_are_recognised() -> None:
    for host in ("127.0.0.1:80", "localhost:80", "[::1]:80", "localhost"):
        assert is_own_name(host, "127.0.0.1")
    for host in ("evil.example", "10.0.0.1:80", "127.0.0.1.evil.example:80", "", "localhost.evil:1"):
        assert not is_own_name(host, "127.0.0.1")
    assert is_own_name("10.0.0.1:80", "0.0.0.0")
    assert not is_own_name("evil.example:80", "0.0.0.0")


def test_images_and_rows_are_those_of_the_output(server: Server, output: str) -> None:
    store, folder = Store(output), data_folder(server)
    for manifest in read_manifests(store):
        shard = Shard(store, manifest)
        keys = [key for batch in shard.keys for key in batch]
        images = read_images(store, manifest, keys)
        assert images
        for number, key in enumerate(keys):
            path = IMAGE_FILE.format(manifest["shard"], number)
            assert ask(server, f"/{folder}/{path}")[:2] == ((200, images[key]) if key in images else
                                                            (404, b"the image is not stored"))  # fmt: skip
        rows = json.loads(ask(server, f"/{folder}/{ROWS_FILE.format(manifest['shard'], 0)}")[1])
        assert [row["key"] for row in rows] == keys
        assert rows[0]["tokens"]
        assert [row["key"] for row in map(shard.row, range(len(keys)))] == keys


def test_a_shard_that_is_written_again_is_not_served(start: Callable[..., Server], tmp_path: Path) -> None:
    shards = [[kept(picture(i), source="s", url=f"http://x/{i}") for i in range(first, first + 4)] for first in (0, 4)]
    output = write_output(tmp_path / "out", shards, "formats=[arrow,grit]")
    server = start(output, marks=str(tmp_path / "m.csv"))
    folder, mark = data_folder(server), {"number": 1, "box": 0, "mark": "right"}
    paths = [f"/{folder}/{name}" for name in (IMAGE_FILE.format(0, 1), ROWS_FILE.format(0, 0))]
    assert [ask(server, path)[0] for path in paths] == [200, 200]
    Path(output, "_manifests/00000.json").unlink()
    assert ask(server, paths[0])[:2] == (503, CHANGED.encode())  # while the shard is written
    write_output(tmp_path / "out", [shards[0][::-1], shards[1]], "formats=[arrow,grit]")
    answers = [ask(server, path) for path in paths] + [ask(server, "/marks", {**mark, "shard": 0})]
    assert [answer[:2] for answer in answers] == [(503, CHANGED.encode())] * 3
    assert ask(server, f"/{folder}/{IMAGE_FILE.format(1, 1)}")[:2] == (200, shards[1][1]["image"])
    assert ask(server, "/marks", {**mark, "shard": 1})[0] == 204


def test_images_of_a_tar_without_index_are_found(output: str) -> None:
    store = Store(output)
    manifest = read_manifests(store)[0]
    without = {**manifest, "files": {name: facts for name, facts in manifest["files"].items() if "_index" not in name}}
    assert Shard(store, without).places == Shard(store, manifest).places  # type: ignore[arg-type]


def test_marks_are_written_into_a_csv_that_quality_reads(
    start: Callable[..., Server], output: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "marks.csv"
    server = start(output, marks=str(path))
    rows = json.loads(ask(server, f"/{data_folder(server)}/{ROWS_FILE.format(0, 0)}")[1])
    number = next(i for i, row in enumerate(rows) if len(row["boxes"] or ()) > 2)
    for box, mark in enumerate(("right", "wrong", "unsure")):
        assert ask(server, "/marks", {"shard": 0, "number": number, "box": box, "mark": mark})[0] == 204
    key = rows[number]["key"]
    found = [(row.key, box.number, is_right) for row, box, is_right in marked_boxes(output, path)]
    assert found == [(key, 0, True), (key, 1, False)]
    assert ask(server, "/marks", {"shard": 0, "number": number, "box": 0, "mark": ""})[0] == 204
    assert [box.number for _, box, _ in marked_boxes(output, path)] == [1]
    before = path.read_bytes()
    assert all(line.startswith(b'"') and line.endswith(b'"') for line in before.splitlines())
    assert MarkFile(path).marks(server.explorer.output.index) == [(key, 1, "wrong"), (key, 2, "unsure")]
    for wrong in (
        {"shard": 0, "number": number, "box": 999, "mark": "right"},
        {"shard": 0, "number": number, "box": 0, "mark": "=1+1"},
        {"shard": 0, "number": number},
        {"shard": 0, "number": 2, "box": 0, "mark": "right"},
        {"shard": float("inf"), "number": number, "box": 0, "mark": "right"},
        [],
    ):
        assert ask(server, "/marks", wrong)[0] == 400, wrong
    assert ask(server, "/marks", {}, **{"Content-Type": "text/plain; charset=nothing"})[0] == 400
    for coding in ("gzip", "deflate", "br"):
        assert ask(server, "/marks", b"xyz", **{"Content-Encoding": coding})[0] == 400
    assert "Traceback" not in "".join(capfd.readouterr())
    for text in ('{"shard": 1e999, "number": 0, "box": 0, "mark": "right"}', "[" * 4000, "{" * 4000):
        code, _, headers = ask(server, "/marks", text.encode())
        assert (code, "Content-Security-Policy" in headers) == (400, True), text[:40]
    assert ask(server, "/marks", {"shard": 9, "number": 0, "box": 0, "mark": "right"})[0] == 404
    mark = {"shard": 0, "number": number, "box": 0, "mark": "right"}
    assert ask(server, "/marks", mark, Origin="http://evil.example")[0] == 403
    assert path.read_bytes() == before


def test_a_file_that_holds_no_marks_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "marks.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="has no column 'key'; give another file with marks="):
        MarkFile(path)


def test_explorers_with_one_file_keep_the_marks_of_each_other(
    start: Callable[..., Server], output: str, tmp_path: Path
) -> None:
    path, other = tmp_path / "marks/marks.csv", write_output(tmp_path / "other", [CATS], "formats=[arrow,grit]")
    path.parent.mkdir()
    servers = [start(name, marks=str(path)) for name in (output, output, other)]
    rows = json.loads(ask(servers[0], f"/{data_folder(servers[0])}/{ROWS_FILE.format(0, 0)}")[1])
    number = next(i for i in range(len(CATS)) if len(rows[i]["boxes"] or ()) >= 2)
    given = ((0, "right"), (1, "wrong"), (0, "unsure"))

    def mark(at: int) -> None:
        body = {"shard": 0, "number": number, "box": given[at][0], "mark": given[at][1]}
        assert ask(servers[at], "/marks", body)[0] == 204

    threads = [threading.Thread(target=mark, args=[at]) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shown = [sorted(json.loads(ask(server, "/marks")[1])) for server in servers]
    key = rows[number]["key"]
    assert shown[0] == shown[1] == [[key, 0, "right"], [key, 1, "wrong"]]
    assert shown[2] == [[key, 0, "unsure"]]  # the key is the same, the phrase is another
    assert len(path.read_text(encoding="utf-8").splitlines()) == 4
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("column", "text", "is_shown"),
    [("phrase", "another", False), ("x_max", "0.0101", False), ("y_min", "", False), ("key", "{short}", True),
     ("x_min", "{comma}", True)],
)  # fmt: skip
def test_a_mark_is_shown_if_phrase_and_corners_are_those_of_the_box(
    server: Server, tmp_path: Path, column: str, text: str, is_shown: bool
) -> None:
    path, explored = tmp_path / "marks.csv", server.explorer.output
    row = next(row for row in explored.shards.get(0).details(0) if row["boxes"])
    MarkFile(path).set(row, 0, "right")
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    place = lines[0].index(column)
    lines[1][place] = text.format(short=str(int(row["key"])), comma=lines[1][place].replace(".", ","))
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
    assert MarkFile(path).marks(explored.index) == [(row["key"], 0, "right")] * is_shown
    MarkFile(path).set(row, 0, "wrong")
    assert MarkFile(path).marks(explored.index) == [(row["key"], 0, "wrong")]
    assert len(path.read_text(encoding="utf-8").splitlines()) == (2 if is_shown else 3)


def test_a_remote_output_has_the_same_index_images_and_rows(output: str, cache: str, tmp_path: Path) -> None:
    remote = fsspec.filesystem("memory")
    remote.put(f"{output}/", "/explored/", recursive=True)
    here, there = read_output(output, cache), read_output("memory://explored", str(tmp_path))
    assert {path.name: path.read_bytes() for path in there.index.iterdir()} == {
        path.name: path.read_bytes() for path in here.index.iterdir()
    }
    assert there.shards.get(0).image(0) == here.shards.get(0).image(0) is not None
    assert there.shards.get(1).details(0) == here.shards.get(1).details(0)
