"""The download stage with a local web server: one test for every drop reason."""

import io
import os
import resource
import time
from threading import Timer
from typing import Any

import PIL.Image
import pyarrow as pa
import pytest

from hypergrit_common.image_process import isolated
from hypergrit_common.images import ORIENTATION_TAG, ImageLimits, decode
from pipeline.config import load_config
from pipeline.faults import TooManyFaultsError
from pipeline.images import ResizeConfig, encode_jpeg
from pipeline.read.types import ShardPlan
from pipeline.run.steps import Notes, Steps, run_stages
from pipeline.stages.download import stage
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.stage import Download
from schemas.rows import DOWNLOADED, READ
from schemas.status import REASONS
from tests.hypergrit_common import bombs
from tests.patience import PATIENCE_S, linear_time
from tests.pipeline.settings import with_constants
from tests.pipeline.stages.download.server import TinyWeb, jpeg

Rows = list[dict[str, Any]]


def download(*rows: str | bytes, captions: list[str] | None = None, **settings: Any) -> Rows:
    """The output rows of the stage for URLs or image bytes; captions differ unless given."""
    table = pa.Table.from_pylist(
        [
            {
                "key": f"{i:012d}",
                "source": "a",
                "source_row": i,
                "status": "kept",
                "caption_original": captions[i] if captions else f"caption {i}",
                "url" if isinstance(row, str) else "image": row,
            }
            for i, row in enumerate(rows)
        ],
        schema=READ,
    )
    defaults: dict[str, Any] = {
        "allowed_private_hosts": ("127.0.0.1",),
        "timeout_s": PATIENCE_S,
        "deadline_s": PATIENCE_S,
        "backoff_s": 0.01,
        "resize": ResizeConfig(size=32),
    }
    result = Download(with_constants(DownloadConfig, **{**defaults, **settings}))(table)
    assert result.schema.equals(DOWNLOADED)
    return result.to_pylist()


def test_a_jpeg_with_far_more_bytes_than_pixels_is_encoded_again() -> None:
    lean = jpeg(0, 32, 32)
    fat = lean[:2] + (b"\xff\xee\xff\xff" + bytes(65533)) * 10 + lean[2:]
    first, second = download(lean, fat)
    assert first["image"] == lean
    assert (second["reason"], len(second["image"]) < 10_000) == (None, True)


def outcome(*rows: str | bytes, **settings: Any) -> tuple[str | None, str | None]:
    """Reason and detail of the first row; checks that a dropped row has no image."""
    row = download(*rows, **settings)[0]
    assert (row["image"] is None) == (row["status"] == "dropped")
    assert row["reason"] is None or (row["stage"] == "download" and row["reason"] in REASONS["download"])
    return row["reason"], row["detail"]


def test_an_image_is_resized_and_its_original_size_recorded(web: TinyWeb) -> None:
    row = download(web.url("/size/300x400"))[0]
    assert (row["width"], row["height"]) == (43, 32)
    assert (row["original_width"], row["original_height"], row["original_format"]) == (400, 300, "jpeg")
    assert decode(row["image"]).shape == (32, 43, 3)
    assert len(row["sha256"]) == 64


def test_rows_keep_their_order_whichever_response_is_first(web: TinyWeb) -> None:
    urls = [web.url(f"/image/{i}") for i in range(12)]
    single = [download(url)[0]["image"] for url in urls[:3]]
    rows = download(*urls)
    assert [row["url"] for row in rows] == urls
    assert [row["image"] for row in rows[:3]] == single
    assert rows == download(*urls, concurrency=1)


def test_dropped_rows_are_not_fetched(web: TinyWeb) -> None:
    row = {"key": "0", "source": "a", "source_row": 0, "status": "dropped", "url": web.url("/image/77")}
    table = pa.Table.from_pylist([row | {"stage": "read", "reason": "bad_row"}], schema=READ)
    assert Download(DownloadConfig())(table).to_pylist()[0]["reason"] == "bad_row"
    assert web.hits["/image/77"] == 0


def test_a_row_with_image_bytes_is_verified_without_a_request() -> None:
    rows = download(jpeg(0, 64, 64), b"no image")
    assert (rows[0]["width"], rows[0]["status"]) == (32, "kept")
    assert rows[1]["reason"] == "not_an_image"


def saved(image: PIL.Image.Image, format_: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format_, **options)
    return out.getvalue()


def test_a_plain_jpeg_that_needs_no_resizing_keeps_its_bytes() -> None:
    (row,) = download(jpeg(0, 300, 401), resize=ResizeConfig(mode="none"))
    assert row["image"] == jpeg(0, 300, 401)
    assert (row["width"], row["height"], row["original_width"], row["original_height"]) == (401, 300, 401, 300)


def test_without_resizing_other_images_are_encoded_at_their_full_size() -> None:
    pixels = PIL.Image.open(io.BytesIO(jpeg(0, 401, 300)))
    exif = PIL.Image.Exif()
    exif[ORIENTATION_TAG] = 6
    images = [saved(pixels, "JPEG", exif=exif), saved(pixels.convert("L"), "JPEG"), saved(pixels, "PNG")]
    rows = download(*images, resize=ResizeConfig(mode="none"))
    assert [(row["width"], row["height"]) for row in rows] == [(401, 300), (300, 401), (300, 401)]
    for row, image in zip(rows, images, strict=True):
        assert row["image"] == encode_jpeg(decode(image))


def test_without_resizing_a_truncated_jpeg_is_found() -> None:
    assert download(jpeg(0, 300, 401)[:-2000], resize=ResizeConfig(mode="none"))[0]["reason"] == "undecodable"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "not a url",
        "data:image/png;base64,AAAA",
        "file:///etc/passwd",
        "ftp://a.org/x.jpg",
        "http://",
        "http://[::1",
    ],
)
def test_a_url_that_is_not_http_is_invalid(url: str) -> None:
    assert outcome(url)[0] == "invalid_url"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "169.254.169.254", "2130706433", "0x7f.1", "localhost"],
)
def test_a_private_address_is_refused(web: TinyWeb, host: str) -> None:
    before = web.hits.total()
    assert outcome(f"http://{host}:{web.port}/image/0", allowed_private_hosts=())[0] == "private_address"
    assert web.hits.total() == before


def test_a_redirect_to_a_private_address_is_refused(web: TinyWeb) -> None:
    assert outcome(web.url("/to?url=http://127.0.0.2/x.jpg"))[0] == "private_address"
    assert outcome(web.url("/to?url=http://localhost/x.jpg"))[0] == "private_address"


def test_a_redirect_to_a_file_is_an_invalid_url(web: TinyWeb) -> None:
    assert outcome(web.url("/to?url=file:///etc/passwd"))[0] == "invalid_url"


def test_a_relative_redirect_is_followed(web: TinyWeb) -> None:
    assert outcome(web.url("/to?url=/image/0"))[0] is None


def test_endless_redirects_stop_at_the_limit(web: TinyWeb) -> None:
    assert outcome(web.url("/loop/x"), max_redirects=3) == ("too_many_redirects", "more than 3")


def test_an_unknown_host_is_a_dns_error() -> None:
    assert outcome("http://no-such-host.invalid/x.jpg", retries=0)[0] == "dns_error"


def test_a_closed_port_is_a_connection_error() -> None:
    assert outcome("http://127.0.0.1:2/x.jpg", retries=0) == ("connection_error", "ECONNREFUSED")


def test_an_aborted_connection_is_retried_and_then_a_connection_error(web: TinyWeb) -> None:
    assert outcome(web.url("/cut/1"), retries=2)[0] == "connection_error"
    assert web.hits["/cut/1"] >= 3  # aiohttp may repeat a GET by itself


def test_plain_http_at_an_https_url_is_a_tls_error(web: TinyWeb) -> None:
    assert outcome(web.url("/image/0").replace("http:", "https:"), retries=0)[0] == "tls_error"


@pytest.mark.parametrize("path", ["/hang", "/trickle"])
def test_a_slow_server_is_a_timeout(web: TinyWeb, path: str) -> None:
    start = time.monotonic()
    assert outcome(web.url(path), timeout_s=0.3, retries=0) == ("timeout", "0.3 s")
    assert time.monotonic() - start < PATIENCE_S


def test_the_deadline_limits_all_attempts_together(web: TinyWeb) -> None:
    start = time.monotonic()
    assert outcome(web.url("/hang"), timeout_s=0.2, retries=1000, deadline_s=0.6)[0] == "timeout"
    assert time.monotonic() - start < 100  # without the limit, 1000 times 0.2 s


def test_a_missing_page_is_an_http_error_without_retries(web: TinyWeb) -> None:
    assert outcome(web.url("/status/404"), retries=3) == ("http_error", "404")
    assert web.hits["/status/404"] == 1


def test_a_server_error_is_retried(web: TinyWeb) -> None:
    assert outcome(web.url("/flaky/a"), retries=2)[0] is None
    assert outcome(web.url("/flaky/b"), retries=1) == ("http_error", "503")


def test_a_retry_waits_for_retry_after_unless_that_exceeds_the_deadline(web: TinyWeb) -> None:
    start = time.monotonic()
    assert outcome(web.url("/wait/1"))[0] is None
    assert time.monotonic() - start >= 1
    assert outcome(web.url("/wait/3600")) == ("http_error", "429")


def test_redirects_from_other_hosts_count_in_the_limit_of_a_host(web: TinyWeb) -> None:
    targets = [f"http://localhost:{web.port}/busy/{i}" for i in range(8)]
    rows = download(
        *targets[:4],
        *[web.url(f"/to?url={url}") for url in targets[4:]],
        allowed_private_hosts=("127.0.0.1", "localhost"),
        concurrency_per_host=2,
    )
    assert {row["status"] for row in rows} == {"kept"}
    assert web.max_busy == 2


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ("noai", "opted_out"),
        ("nofollow, NoImageAI", "opted_out"),
        ("hypergrit: noindex", "opted_out"),
        ("*: noai", "opted_out"),
        ("max-image-preview: large, noai", "opted_out"),
        ("unavailable_after: 25 Jun 2030 15:00:00 PST, noimageai", "opted_out"),
        ("unavailable_after: Tuesday, 25-Jun-30 15:00:00 PST, noai", "opted_out"),
        ("noimageai, otherbot: nofollow", "opted_out"),
        ("otherbot: noai", None),
        ("otherbot: noai, noimageai", None),
        ("nofollow, otherbot: noai", None),
        ("nofollow", None),
    ],
)
def test_an_opt_out_drops_the_row(web: TinyWeb, tag: str, reason: str | None) -> None:
    assert outcome(web.url(f"/robots?tag={tag}"))[0] == reason


def test_an_opt_out_of_a_redirect_drops_the_row(web: TinyWeb) -> None:
    assert outcome(web.url(f"/to?tag=noai&url={web.url('/image/0')}"))[0] == "opted_out"
    assert outcome(web.url(f"/to?tag=nofollow&url={web.url('/image/0')}"))[0] is None


def test_an_endless_body_is_read_up_to_the_limit(web: TinyWeb) -> None:
    before = web.bytes_sent
    assert outcome(web.url("/endless"), max_bytes=100_000) == ("too_many_bytes", "more than 100000")
    assert web.bytes_sent - before < 10_000_000


def test_a_declared_size_above_the_limit_is_refused(web: TinyWeb) -> None:
    assert outcome(web.url("/image/0"), max_bytes=100)[0] == "too_many_bytes"
    assert outcome(jpeg(), max_bytes=100)[0] == "too_many_bytes"


def test_a_gzip_bomb_is_refused_but_a_compressed_image_is_read(web: TinyWeb) -> None:
    assert outcome(web.url("/bomb"), max_bytes=1_000_000)[0] == "too_many_bytes"
    assert outcome(web.url("/gzipped"))[0] is None


def test_a_web_page_is_not_an_image(web: TinyWeb) -> None:
    assert outcome(web.url("/text"))[0] == "not_an_image"


def test_a_truncated_jpeg_is_undecodable(web: TinyWeb) -> None:
    assert outcome(web.url("/truncated"))[0] == "undecodable"


def test_a_decompression_bomb_has_too_many_pixels(web: TinyWeb) -> None:
    assert outcome(web.url("/png_bomb"))[0] == "too_many_pixels"


def test_tiny_and_elongated_images_are_dropped(web: TinyWeb) -> None:
    assert outcome(web.url("/size/8x80"), limits=ImageLimits(min_side_px=16)) == ("too_small", "8 px")
    assert outcome(web.url("/size/20x500"), limits=ImageLimits(max_aspect_ratio=8))[0] == "extreme_aspect_ratio"


def test_an_image_longer_than_a_jpeg_can_be_is_dropped(web: TinyWeb) -> None:
    strip = io.BytesIO()
    PIL.Image.new("L", (70_000, 4)).save(strip, "PNG")
    limits, resize = ImageLimits(max_aspect_ratio=1e6), ResizeConfig(mode="none")
    assert outcome(strip.getvalue(), limits=limits, resize=resize)[0] == "too_many_pixels"


def test_a_repeated_image_with_the_same_caption_is_a_duplicate(web: TinyWeb) -> None:
    urls = [web.url("/image/1"), web.url("/image/2"), web.url("/to?url=/image/1"), web.url("/image/1")]
    rows = download(*urls, captions=["a", "a", "a", "b"])
    assert [row["reason"] for row in rows] == [None, None, "duplicate", None]
    assert rows[2]["detail"] == "000000000000"
    assert rows[2]["sha256"] == rows[0]["sha256"]


def test_crafted_images_are_dropped_and_the_other_rows_of_the_shard_kept(web: TinyWeb) -> None:
    crafted = [bombs.scan_bomb(n_scans=n) for n in (100, 200, 2000)] + [bombs.tile_bomb(), bombs.fill_bomb(10_000_000)]
    crafted.append(bombs.chunk_bomb(b"zzZz"))
    images = [jpeg(shade) for shade in range(0, 200, 10)]
    with linear_time():
        rows = download(*crafted, *images, *(web.url(f"/image/{i}") for i in range(10)), decode_threads=1)
    assert {row["reason"] for row in rows[: len(crafted)]} == {"too_costly"}
    assert [row["detail"] for row in rows[len(crafted) :] if row["status"] != "kept"] == []


def test_rows_on_which_the_stage_raises_are_faults_with_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(data: bytes, config: DownloadConfig) -> stage.Outcome:
        if data.endswith(b"bad"):
            raise ZeroDivisionError("a\nbug")
        return prepare_image(data, config)

    prepare_image = stage.prepare_image
    monkeypatch.setattr(stage, "prepare_image", fail)
    parts = [(image_table(jpeg(0), jpeg(1) + b"bad"), Notes({})), (image_table(jpeg(2) + b"bad", jpeg(3)), Notes({}))]
    plan = ShardPlan(0, 0, 4, ())
    config = load_config(["input=/in", "output=/out", "max_internal_errors=2"])
    table, notes = Steps(config, {"config_hash": "", "models": {}}).download(plan, parts)
    assert table["reason"].to_pylist() == [None, "internal_error", "internal_error", None]
    assert table["detail"].to_pylist()[1] == r"ZeroDivisionError: a\nbug"
    assert [(fault.key, fault.stage) for fault in notes.faults] == [("1", "download"), ("0", "download")]
    assert "in fail" in notes.faults[0].traceback
    strict = load_config(["input=/in", "output=/out", "max_internal_errors=1"])
    with pytest.raises(TooManyFaultsError, match="row 1 in stage 'download'") as caught:
        Steps(strict, {"config_hash": "", "models": {}}).download(plan, parts)
    assert "ZeroDivisionError" in str(caught.value)


def image_table(*images: bytes) -> pa.Table:
    rows = [
        {"key": str(i), "source": "a", "source_row": i, "status": "kept", "image": image, "caption_original": str(i)}
        for i, image in enumerate(images)
    ]
    return pa.Table.from_pylist(rows, schema=READ)


def test_a_lack_of_open_files_while_decoding_drops_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "PATIENCE_S", 0.3)
    costly = io.BytesIO()
    PIL.Image.new("RGB", (3000, 2000), "red").save(costly, "TIFF")  # decoded in a child process
    table, download = image_table(jpeg(0), costly.getvalue()), Download(DownloadConfig())
    download(table.slice(0, 1))  # opens the event loop
    isolated().close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 1, hard))
        with pytest.raises(OSError, match="Too many open files"):
            run_stages([("download", download.isolate)], table, Notes({}), ShardPlan(0, 0, 2, ()))
        monkeypatch.setattr(stage, "PATIENCE_S", 30.0)
        Timer(0.5, resource.setrlimit, (resource.RLIMIT_NOFILE, (soft, hard))).start()
        assert download(table)["status"].to_pylist() == ["kept", "kept"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
