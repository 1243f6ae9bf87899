"""The demo's web server answers as the web does, well and badly."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, ClientTimeout
from aiohttp.test_utils import TestClient, TestServer
from PIL import Image, ImageOps

from demo.hostile import BOMB_SIDE_PX, FORMS, OVERSIZED_BYTES
from demo.serve import MOVED, make_app
from demo.world.layout import WorldConfig
from demo.world.scenes import DEMO_SEEDS, make_scene

SEED = DEMO_SEEDS[7]
SCENE = f"/scene/fluent/{SEED}/336x448"


def ask(job: Callable[[TestClient[Any, Any]], Awaitable[Any]]) -> Any:
    """What `job` returns, given a client of a fresh server."""

    async def run() -> Any:
        async with TestClient(TestServer(make_app())) as client:
            return await job(client)

    return asyncio.run(run())


def get(path: str, **options: Any) -> tuple[int, bytes, dict[str, str]]:
    async def job(client: TestClient[Any, Any]) -> tuple[int, bytes, dict[str, str]]:
        response = await client.get(path, **options)
        return response.status, await response.read(), dict(response.headers)

    return ask(job)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_shows_the_scene_of_its_seed(form: str) -> None:
    status, body, headers = get(f"{SCENE}/{form}")
    assert status == 200
    assert headers["Content-Type"].startswith("image/")
    shown = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(body))).convert("RGB"), np.float32)
    drawn = make_scene(SEED, "fluent", WorldConfig(width=336, height=448)).image.astype(np.float32)
    assert shown.shape == drawn.shape
    assert np.abs(shown - drawn)[4:-4, 4:-4].mean() < 12  # GIF's palette is the coarsest


def test_odd_forms_are_what_their_names_say() -> None:
    image = {form: Image.open(io.BytesIO(get(f"{SCENE}/{form}")[1])) for form in FORMS}
    assert image["cmyk.jpg"].mode == "CMYK"
    assert image["palette.gif"].format == "GIF"
    assert image["alpha.png"].mode == "RGBA"
    assert image["turned.jpg"].size == (448, 336)
    assert get(f"{SCENE}/deep.png")[1][24] == 16  # bit depth in the PNG header


def test_flaky_address_fails_once_and_then_delivers() -> None:
    async def job(client: TestClient[Any, Any]) -> list[int]:
        return [(await client.get(f"/flaky{SCENE}/plain.jpg")).status for _ in range(3)]

    assert ask(job) == [500, 200, 200]


def test_redirect_chain_has_as_many_hops_as_its_number() -> None:
    async def job(client: TestClient[Any, Any]) -> tuple[int, int]:
        response = await client.get(f"/redirect/3{SCENE}/plain.jpg")
        return response.status, len(response.history)

    assert ask(job) == (200, 3)


@pytest.mark.parametrize("name", MOVED)
def test_moved_addresses_point_where_no_downloader_should_go(name: str) -> None:
    status, _, headers = get(f"/moved/{name}", allow_redirects=False)
    assert (status, headers["Location"]) == (302, MOVED[name])


def test_opt_out_is_announced_in_the_header() -> None:
    assert get(f"/robots/noai{SCENE}/plain.jpg")[2]["X-Robots-Tag"] == "noai"


@pytest.mark.parametrize("path", ["/status/404", "/file/none.jpg", "/scene/none/1/336x448/plain.jpg", f"{SCENE}/none"])
def test_what_is_not_there_is_404(path: str) -> None:
    assert get(path)[0] == 404


def test_impossible_canvas_is_404() -> None:
    assert get(f"/scene/fluent/{SEED}/9999x9999/plain.jpg")[0] == 404


def test_truncated_jpeg_opens_but_does_not_decode() -> None:
    image = Image.open(io.BytesIO(get("/file/truncated.jpg")[1]))
    with pytest.raises(OSError, match="truncated"):
        image.load()


def test_bomb_is_small_on_the_wire_and_huge_in_its_header() -> None:
    body = get("/file/bomb.png")[1]
    assert len(body) < 1000
    assert int.from_bytes(body[16:20], "big") == int.from_bytes(body[20:24], "big") == BOMB_SIDE_PX


def test_huge_body_is_delivered_without_announcing_its_length() -> None:
    status, body, headers = get("/slow/huge.jpg")
    assert status == 200
    assert len(body) > OVERSIZED_BYTES
    assert "Content-Length" not in headers


def test_packed_body_is_small_on_the_wire_and_oversized_once_unpacked() -> None:
    unpacked, headers = get("/file/packed.jpg")[1:]
    assert len(unpacked) == OVERSIZED_BYTES > 100 * int(headers["Content-Length"])


@pytest.mark.parametrize("name", ["silent.jpg", "endless.jpg"])
def test_slow_addresses_outlast_the_client(name: str) -> None:
    async def run() -> None:
        async with TestServer(make_app()) as server, ClientSession(timeout=ClientTimeout(total=0.4)) as session:
            response = await session.get(server.make_url(f"/slow/{name}"))
            await response.read()

    with pytest.raises(TimeoutError):
        asyncio.run(run())
