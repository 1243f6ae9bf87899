"""Tests of the demo's web server: valid images, redirects, errors and hostile responses."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, ClientTimeout
from aiohttp.test_utils import TestClient, TestServer
from PIL import Image, ImageOps

from demo.serve import BOMB_SIDE_PX, IMAGE_VARIANTS, MOVED, OVERSIZED_BYTES, make_app
from demo.world.layout import WorldConfig
from demo.world.scenes import DEMO_SEEDS, make_scene

SEED = DEMO_SEEDS[7]
SCENE = f"/scene/fluent/{SEED}/336x448"


def with_client(job: Callable[[TestClient[Any, Any]], Awaitable[Any]]) -> Any:
    """Return the result of `job`, called with a client of a new server."""

    async def run() -> Any:
        async with TestClient(TestServer(make_app())) as client:
            return await job(client)

    return asyncio.run(run())


def get(path: str, **options: Any) -> tuple[int, bytes, dict[str, str]]:
    """Return status, body and headers of the response to a GET request."""

    async def job(client: TestClient[Any, Any]) -> tuple[int, bytes, dict[str, str]]:
        response = await client.get(path, **options)
        return response.status, await response.read(), dict(response.headers)

    return with_client(job)


@pytest.mark.parametrize("variant", IMAGE_VARIANTS)
def test_every_image_variant_shows_the_scene_of_its_seed(variant: str) -> None:
    status, body, headers = get(f"{SCENE}/{variant}")
    assert status == 200
    assert headers["Content-Type"].startswith("image/")
    shown = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(body))).convert("RGB"), np.float32)
    drawn = make_scene(SEED, "fluent", WorldConfig(width=336, height=448)).image.astype(np.float32)
    assert shown.shape == drawn.shape
    assert np.abs(shown - drawn)[4:-4, 4:-4].mean() < 12  # the GIF has the largest error, because of its palette


def test_unusual_variants_have_the_encoding_of_their_name() -> None:
    image = {name: Image.open(io.BytesIO(get(f"{SCENE}/{name}")[1])) for name in IMAGE_VARIANTS}
    assert image["cmyk.jpg"].mode == "CMYK"
    assert image["palette.gif"].format == "GIF"
    assert image["alpha.png"].mode == "RGBA"
    assert image["turned.jpg"].size == (448, 336)
    assert get(f"{SCENE}/deep.png")[1][24] == 16  # bit depth in the PNG header


def test_flaky_url_fails_on_the_first_request_only() -> None:
    async def job(client: TestClient[Any, Any]) -> list[int]:
        return [(await client.get(f"/flaky{SCENE}/plain.jpg")).status for _ in range(3)]

    assert with_client(job) == [500, 200, 200]


def test_redirect_chain_has_the_requested_number_of_hops() -> None:
    async def job(client: TestClient[Any, Any]) -> tuple[int, int]:
        response = await client.get(f"/redirect/3{SCENE}/plain.jpg")
        return response.status, len(response.history)

    assert with_client(job) == (200, 3)


@pytest.mark.parametrize("name", MOVED)
def test_moved_urls_redirect_to_forbidden_targets(name: str) -> None:
    status, _, headers = get(f"/moved/{name}", allow_redirects=False)
    assert (status, headers["Location"]) == (302, MOVED[name])


def test_opt_out_directive_is_in_the_header() -> None:
    assert get(f"/robots/noai{SCENE}/plain.jpg")[2]["X-Robots-Tag"] == "noai"


@pytest.mark.parametrize(
    "path",
    ["/status/404", "/file/none.jpg", "/scene/none/1/336x448/plain.jpg", f"{SCENE}/none",
     f"/scene/fluent/{SEED}/9999x9999/plain.jpg"],
)  # fmt: skip
def test_an_unknown_path_or_a_canvas_out_of_range_returns_404(path: str) -> None:
    assert get(path)[0] == 404


def test_truncated_jpeg_opens_but_does_not_decode() -> None:
    image = Image.open(io.BytesIO(get("/file/truncated.jpg")[1]))
    with pytest.raises(OSError, match="truncated"):
        image.load()


def test_bomb_is_a_small_file_that_declares_a_huge_image() -> None:
    body = get("/file/bomb.png")[1]
    assert len(body) < 1000
    assert int.from_bytes(body[16:20], "big") == int.from_bytes(body[20:24], "big") == BOMB_SIDE_PX


def test_huge_body_is_sent_without_content_length() -> None:
    status, body, headers = get("/slow/huge.jpg")
    assert status == 200
    assert len(body) > OVERSIZED_BYTES
    assert "Content-Length" not in headers


def test_packed_body_is_small_when_compressed_and_oversized_when_decompressed() -> None:
    unpacked, headers = get("/file/packed.jpg")[1:]
    assert len(unpacked) == OVERSIZED_BYTES > 100 * int(headers["Content-Length"])


@pytest.mark.parametrize("name", ["silent.jpg", "endless.jpg"])
def test_slow_urls_exceed_the_timeout_of_the_client(name: str) -> None:
    async def run() -> None:
        async with TestServer(make_app()) as server, ClientSession(timeout=ClientTimeout(total=0.4)) as session:
            response = await session.get(server.make_url(f"/slow/{name}"))
            await response.read()

    with pytest.raises(TimeoutError):
        asyncio.run(run())
