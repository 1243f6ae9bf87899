"""The demo's web server on 127.0.0.1: `python -m demo.serve --port 8931`.

    /scene/STYLE/SEED/448x336/FILE    the scene of a seed; FILE is a key of demo.serve.IMAGE_VARIANTS
    /flaky/scene/...                  status 500 on the first request, then the scene
    /redirect/3/scene/...             three redirects, then the scene
    /robots/noai/scene/...            the scene with `X-Robots-Tag: noai`
    /file/NAME                        a broken file of demo.serve.BROKEN_FILES
    /status/503                       an empty response with this status
    /moved/NAME                       a redirect to a forbidden target, or to itself
    /slow/NAME                        a response that is too slow or too large

Images are generated per request; only the artwork is read from disk.
"""

import argparse
import asyncio
import gzip
import io
import struct
import sys
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, get_args

import cv2
import numpy as np
from aiohttp import web
from PIL import Image

from demo.world.layout import WorldConfig
from demo.world.scenes import make_scene
from demo.world.sprites import Style
from hypergrit_common.cli import EXIT_CODES, command
from hypergrit_common.errors import UserError
from hypergrit_common.images import Image as Pixels

# Image files of the kinds found on the web: unusual but readable variants, and broken or malicious files.

EXIF_ORIENTATION = 0x0112
ROTATE_90_CW = 6  # EXIF orientation: rotate 90 degrees clockwise for display
BOMB_SIDE_PX = 30_000
OVERSIZED_BYTES = 24 << 20


def encode(pixels: Pixels, format_: str, mode: str | None = None, **options: Any) -> bytes:
    """Encode `pixels` [height width 3] in a format of Pillow, in their own or another mode of colours."""
    buffer = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(buffer, format_, **options)
    return buffer.getvalue()


def deep_png(pixels: Pixels) -> bytes:
    """Encode a PNG with 16 bits per channel."""
    return bytes(cv2.imencode(".png", pixels[..., ::-1].astype(np.uint16) * 257)[1])


def alpha_png(pixels: Pixels) -> bytes:
    """Encode a PNG with a transparent frame of 4 px."""
    alpha = np.zeros(pixels.shape[:2], np.uint8)
    alpha[4:-4, 4:-4] = 255
    return encode(np.dstack([pixels, alpha]), "PNG")


def rotated_jpeg(pixels: Pixels) -> bytes:
    """Encode a JPEG that is stored rotated, with the EXIF orientation that corrects it, as phones do."""
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = ROTATE_90_CW
    return encode(np.ascontiguousarray(np.rot90(pixels)), "JPEG", quality=92, exif=exif)


IMAGE_VARIANTS: dict[str, Callable[[Pixels], bytes]] = {
    "plain.jpg": lambda pixels: encode(pixels, "JPEG", quality=92),
    "plain.png": lambda pixels: encode(pixels, "PNG"),
    "plain.webp": lambda pixels: encode(pixels, "WEBP", quality=90),
    "palette.gif": lambda pixels: encode(pixels, "GIF"),
    "cmyk.jpg": lambda pixels: encode(pixels, "JPEG", "CMYK", quality=92),  # as used for printing
    "deep.png": deep_png,
    "alpha.png": alpha_png,
    "turned.jpg": rotated_jpeg,
}
"""Encoders of readable images, by the file name that the server uses for them."""


def png(width: int, height: int, rows: bytes) -> bytes:
    """Encode a grey PNG whose header declares `width` x `height` independently of the size of `rows`."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def grey(width: int, height: int) -> Pixels:
    """Return a uniform grey image."""
    return np.full((height, width, 3), 128, np.uint8)


def truncated_jpeg() -> bytes:
    """Return the first 40 % of a JPEG of noise."""
    noise = np.random.default_rng(0).integers(0, 256, (240, 320, 3), np.uint8)
    complete = encode(noise, "JPEG", quality=90)
    return complete[: len(complete) * 2 // 5]


HTML = b"<!DOCTYPE html><html><head><title>404</title></head><body>This image is no longer available.</body></html>"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="300" height="300"><circle cx="150" cy="150" r="99"/></svg>'

BROKEN_FILES: dict[str, Callable[[], bytes]] = {
    "truncated.jpg": truncated_jpeg,
    "page.jpg": lambda: HTML,
    "drawing.svg": lambda: SVG,
    "empty.jpg": lambda: b"",
    "tiny.png": lambda: encode(grey(8, 8), "PNG"),
    "bomb.png": lambda: png(BOMB_SIDE_PX, BOMB_SIDE_PX, bytes(BOMB_SIDE_PX + 1)),
    "packed.jpg": lambda: gzip.compress(bytes(OVERSIZED_BYTES)),
    "strip.png": lambda: encode(grey(2400, 64), "PNG"),
}
"""Response bodies that are not usable images, by the file name that the server uses for them."""


HOST = "127.0.0.1"
PORT = 8931
MOVED = {
    "loop.jpg": "/moved/loop.jpg",
    "inside.jpg": "http://10.0.0.1/secret.jpg",
    "metadata.jpg": "http://169.254.169.254/latest/meta-data/",
    "file.jpg": "file:///etc/hostname",
}
"""Redirect targets: the same URL, a private network, the metadata service of a cloud, a local file."""

FLAKY_SEEN: web.AppKey[set[str]] = web.AppKey("flaky_seen", set)
"""Paths that have been requested before, and failed."""


@lru_cache(maxsize=64)
def render(style: Style, seed: int, width: int, height: int, variant: str) -> bytes:
    """Render a scene and encode it."""
    return IMAGE_VARIANTS[variant](make_scene(seed, style, WorldConfig(width=width, height=height)).image)


async def scene(request: web.Request) -> web.Response:
    """Respond with the scene that the path describes; 404 if it cannot be rendered."""
    style: Style | None = next((s for s in get_args(Style) if s == request.match_info["style"]), None)
    variant = request.match_info["variant"]
    if style is None or variant not in IMAGE_VARIANTS:
        raise web.HTTPNotFound
    seed, width, height = (int(request.match_info[name]) for name in ("seed", "width", "height"))
    try:
        body = await asyncio.to_thread(render, style, seed, width, height, variant)
    except ValueError as error:  # canvas size out of range
        raise web.HTTPNotFound(text=str(error)) from None
    extension = variant.rsplit(".", 1)[1]
    subtype = "jpeg" if extension == "jpg" else extension
    return web.Response(body=body, content_type=f"image/{subtype}")


async def flaky(request: web.Request) -> web.Response:
    """Respond with status 500 to the first request of a path, then with the scene."""
    seen = request.app[FLAKY_SEEN]
    if request.path not in seen:
        seen.add(request.path)
        raise web.HTTPInternalServerError
    return await scene(request)


async def redirect(request: web.Request) -> web.Response:
    """Redirect `n` times, then respond with the scene."""
    n = int(request.match_info["n"])
    target = request.path.removeprefix(f"/redirect/{n}")
    raise web.HTTPFound(target if n <= 1 else f"/redirect/{n - 1}{target}")


async def robots(request: web.Request) -> web.Response:
    """Respond with the scene and an opt-out directive in the header."""
    response = await scene(request)
    response.headers["X-Robots-Tag"] = request.match_info["directive"]
    return response


async def file(request: web.Request) -> web.Response:
    """Respond with a broken file, labelled as a JPEG."""
    name = request.match_info["name"]
    create = BROKEN_FILES.get(name)
    if create is None:
        raise web.HTTPNotFound
    headers = {"Content-Encoding": "gzip"} if name == "packed.jpg" else None
    return web.Response(body=create(), content_type="image/jpeg", headers=headers)


async def status(request: web.Request) -> web.Response:
    """Respond with the status of the path and no body."""
    return web.Response(status=int(request.match_info["code"]))


async def moved(request: web.Request) -> web.Response:
    """Redirect to a target of `MOVED`."""
    target = MOVED.get(request.match_info["name"])
    if target is None:
        raise web.HTTPNotFound
    return web.Response(status=302, headers={"Location": target})


async def slow(request: web.Request) -> web.StreamResponse:
    """Do not respond (`silent.jpg`), send a byte every 0.2 s indefinitely (`endless.jpg`) or 24 MiB (`huge.jpg`)."""
    name = request.match_info["name"]
    if name == "silent.jpg":
        await asyncio.sleep(3600)
    response = web.StreamResponse(headers={"Content-Type": "image/jpeg"})
    await response.prepare(request)
    await response.write(b"\xff\xd8\xff\xe0\x00\x10JFIF\x00")
    try:
        if name == "huge.jpg":
            for _ in range(OVERSIZED_BYTES >> 16):
                await response.write(bytes(1 << 16))
        else:
            while True:
                await response.write(b"\x00")
                await asyncio.sleep(0.2)
    except ConnectionError:  # the client closed the connection
        pass
    return response


async def alive(_: web.Request) -> web.Response:
    """Respond to health checks."""
    return web.Response(text="hypergrit demo\n")


def make_app() -> web.Application:
    """Build the web application with all routes."""
    app = web.Application()
    app[FLAKY_SEEN] = set()
    path = r"/scene/{style}/{seed:\d+}/{width:\d+}x{height:\d+}/{variant}"
    app.add_routes(
        [
            web.get("/", alive),
            web.get(path, scene),
            web.get(f"/flaky{path}", flaky),
            web.get(r"/redirect/{n:\d+}" + path, redirect),
            web.get("/robots/{directive}" + path, robots),
            web.get("/file/{name}", file),
            web.get(r"/status/{code:[2-5]\d\d}", status),
            web.get("/moved/{name}", moved),
            web.get("/slow/{name}", slow),
        ]
    )
    return app


@command()
def main() -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], epilog=EXIT_CODES)
    parser.add_argument("--port", type=int, default=PORT, help="port to listen on")
    port = parser.parse_args().port
    try:
        web.run_app(make_app(), host=HOST, port=port, shutdown_timeout=0.5, access_log=None, print=None)
    except OSError as error:
        raise UserError(f"{error}; give another --port here and to demo.make_input") from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
