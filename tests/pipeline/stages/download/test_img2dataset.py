"""download.client=img2dataset: its shard loop and resizer give the rows and reasons of our client, under our rules."""

import io
import socket
import time
from dataclasses import replace
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pytest

from hypergrit_common.errors import UserError
from pipeline.config import load_config
from pipeline.images import ResizeConfig, ResizeMode
from pipeline.stages.download import config as config_module
from pipeline.stages.download.client import Client
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.stage import Download
from schemas.rows import DOWNLOADED
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import TinyWeb, jpeg
from tests.pipeline.stages.download.test_verdicts import send, serve

pytest.importorskip("img2dataset")


def settings(client: str = "img2dataset", mode: ResizeMode = "keep_ratio", **other: Any) -> DownloadConfig:
    return config(client=client, resize=ResizeConfig(size=32, mode=mode, kernel="area"), **other)


def both(urls: list[str], **other: Any) -> tuple[pa.Table, pa.Table]:
    """The tables of either client."""
    found = []
    for client in ("aiohttp", "img2dataset"):
        stage = Download(settings(client, **other))
        found.append(stage(table(*urls)))
        stage.close()
    return found[0], found[1]


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB"), np.float64)


ANSWERS = {
    "ok": ("/image/1", None),
    "the same again": ("/image/1", None),
    "of the stored size": ("/size/32x40", None),
    "redirected": ("/to/?url=/image/2", None),
    "redirected to a private address": ("/to/?url=http://10.0.0.1/a.jpg", "private_address"),
    "redirected to a private name": ("/to/?url=http://[::1]/a.jpg", "private_address"),
    "redirected without end": ("/loop/", "too_many_redirects"),
    "redirected to a file": ("/to/?url=file:///etc/passwd", "invalid_url"),
    "404": ("/status/404", "http_error"),
    "204": ("/status/204", "http_error"),
    "not an image": ("/text/", "not_an_image"),
    "too small": ("/size/9x200", "too_small"),
    "of one line": ("/size/12x700", "extreme_aspect_ratio"),
    "too many bytes": ("/endless/1", "too_many_bytes"),
    "a compressed bomb": ("/bomb/", "too_many_bytes"),
    "a bomb of pixels": ("/png_bomb/", "too_many_pixels"),
    "compressed": ("/gzipped/", None),
    "a truncated image": ("/truncated/", "undecodable"),
    "no answer": ("/cut/", "connection_error"),
    "opted out": ("/robots/?tag=noai", "opted_out"),
    "opted out for another": ("/robots/?tag=otherbot: noai", None),
    "opted out in the redirect": ("/to/?url=/image/3&tag=noindex", "opted_out"),
    "reserved": ("/header/?tdm-reservation=1", "tdm_reserved"),
    "use refused": ("/header/?Content-Usage=train-ai=n", "usage_refused"),
}  # fmt: skip


def test_both_clients_give_the_same_rows_and_reasons(web: TinyWeb) -> None:
    urls = [*(web.url(path) for path, _ in ANSWERS.values()), "http://10.0.0.1/a.jpg", "no url", ""]
    ours, theirs = both(urls, max_bytes=200_000, min_side_px=10, retries=0)
    expected = [*(reason for _, reason in ANSWERS.values()), "private_address", "invalid_url", "invalid_url"]
    assert reasons(ours) == expected
    assert theirs.schema == DOWNLOADED
    for name in (name for name in DOWNLOADED.names if name not in ("image", "detail")):
        assert theirs[name].to_pylist() == ours[name].to_pylist(), name
    details = zip(reasons(ours), ours["detail"].to_pylist(), theirs["detail"].to_pylist(), strict=True)
    assert [pair for pair in details if pair[1] != pair[2] and pair[0] != "connection_error"] == []


@pytest.mark.parametrize("mode", ["keep_ratio", "border", "none"])
def test_images_of_both_clients_are_alike_and_the_same_in_every_run(web: TinyWeb, mode: ResizeMode) -> None:
    urls = [web.url(path) for path in ("/image/4", "/size/33x500", "/size/20x30", "/size/300x200")]
    ours, theirs = both(urls, mode=mode, max_bytes=1_000_000)
    assert reasons(theirs) == [None] * 4
    for first, second in zip(ours["image"].to_pylist(), theirs["image"].to_pylist(), strict=True):
        assert np.abs(pixels(first) - pixels(second)).mean() < 1
    again = Download(settings(mode=mode, max_bytes=1_000_000))(table(*urls))
    assert again["image"].to_pylist() == theirs["image"].to_pylist()


def test_a_time_out_and_a_cut_body_have_the_reasons_of_our_client() -> None:
    def answer(connection: socket.socket, _: int, path: str) -> None:
        if path == "/cut":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + jpeg())
            connection.close()
        elif path == "/drip":
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-A: ")
            while True:
                connection.sendall(b"b")
                time.sleep(0.05)
        else:
            send(connection, body=jpeg())

    with serve(answer) as port:
        urls = [f"http://127.0.0.1:{port}/{name}" for name in ("cut", "ok", "drip")]
        ours, theirs = both(urls, retries=0, timeout_s=2.0)
        assert reasons(theirs) == reasons(ours) == ["connection_error", None, "timeout"]


def test_a_server_that_does_not_answer_costs_the_time_of_an_attempt(web: TinyWeb) -> None:
    urls = [web.url("/hang/"), web.url("/trickle/1")]
    ours, theirs = both(urls, timeout_s=1.0, retries=0)
    assert reasons(theirs) == reasons(ours) == ["timeout", "timeout"]
    assert theirs["detail"].to_pylist() == ours["detail"].to_pylist()


def test_retries_wait_as_servers_ask_and_the_limit_per_host_is_kept() -> None:
    web = TinyWeb()
    try:
        stage = Download(settings(concurrency=16, concurrency_per_host=2))
        urls = [web.url("/flaky/x"), web.url("/wait/0"), *(web.url(f"/busy/{i}") for i in range(12))]
        assert reasons(stage(table(*urls))) == [None] * 14
        assert web.hits["/flaky/x"] == 3
        assert web.max_busy <= 2
        web.robots = (200, "User-agent: *\nDisallow: /image/")
        polite = Download(settings(robots_txt=True))
        assert reasons(polite(table(web.url("/image/1"), web.url("/busy/1")))) == ["robots_txt", None]
    finally:
        web.close()


def test_bodies_that_wait_for_the_resizer_keep_to_the_limit_in_memory(web: TinyWeb) -> None:
    stage = Download(settings(concurrency=16, max_bytes=20_000, max_bytes_in_flight=40_000))
    assert reasons(stage(table(*(web.url(f"/image/{i}") for i in range(40))))) == [None] * 40

    async def budget(client: Client) -> tuple[int, int]:
        return client.budget.used, client.budget.peak

    used, peak = stage._worker.run(budget)
    assert used == 0
    assert 0 < peak <= 40_000


def test_a_lack_on_this_machine_ends_the_table_and_drops_no_row(web: TinyWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pipeline.stages.download.img2dataset_shard.prepare_image", full)
    with pytest.raises(OSError, match="No space"):
        Download(settings())(table(*(web.url(f"/image/{i}") for i in range(30))))


def test_a_row_on_which_the_stage_raises_is_an_internal_error(web: TinyWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, *_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("pipeline.stages.download.img2dataset_shard.Img2datasetShard._store", broken)
    found, faults = Download(settings()).isolate(table(web.url("/image/5"), web.url("/size/20x30")))
    assert reasons(found) == ["internal_error", None]
    assert [(fault.key, "a bug" in fault.traceback) for fault in faults] == [("0" * 12, True)]


def test_what_the_client_cannot_keep_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    area = settings()
    area.check_use()
    with pytest.raises(UserError, match=r"download\.resize\.kernel=bicubic"):
        replace(area, resize=ResizeConfig()).check_use()
    monkeypatch.setattr(config_module, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'hypergrit\[img2dataset\]'"):
        load_config(["jobs/demo.yaml", "download.client=img2dataset", "download.resize.kernel=area"])
