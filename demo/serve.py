"""The demo's piece of the web: `python -m demo.serve --port 8931`, on 127.0.0.1 alone.

    /scene/STYLE/SEED/448x336/FORM    a scene drawn from its seed; FORM is a key of demo.hostile.FORMS
    /flaky/scene/...                  500 at the first request, then the scene
    /redirect/3/scene/...             three redirects, then the scene
    /robots/noai/scene/...            the scene with `X-Robots-Tag: noai`
    /file/NAME                        a broken file (demo.hostile.FILES)
    /status/503                       nothing but a status
    /moved/NAME, /slow/NAME           redirects that lead nowhere good; answers without end

Pictures are drawn when they are asked for; nothing is read from disk but the artwork.
"""

import argparse
import asyncio
from functools import lru_cache
from typing import get_args

from aiohttp import web

from demo.hostile import FILES, FORMS, OVERSIZED_BYTES
from demo.world.layout import WorldConfig
from demo.world.scenes import make_scene
from demo.world.sprites import Style

HOST = "127.0.0.1"
PORT = 8931
MOVED = {
    "loop.jpg": "/moved/loop.jpg",
    "inside.jpg": "http://10.0.0.1/secret.jpg",
    "metadata.jpg": "http://169.254.169.254/latest/meta-data/",
    "file.jpg": "file:///etc/hostname",
}
"""Redirects and their targets: round in a circle, into a private network, to a cloud's keys, to a local file."""

FLAKY_SEEN: web.AppKey[set[str]] = web.AppKey("flaky_seen", set)
"""Addresses that have failed once and will not again."""


@lru_cache(maxsize=64)
def draw(style: Style, seed: int, width: int, height: int, form: str) -> bytes:
    """A scene as the bytes of an image file."""
    return FORMS[form](make_scene(seed, style, WorldConfig(width=width, height=height)).image)


async def scene(request: web.Request) -> web.Response:
    """The scene that the address names; 404 for one that cannot be."""
    style: Style | None = next((s for s in get_args(Style) if s == request.match_info["style"]), None)
    form = request.match_info["form"]
    if style is None or form not in FORMS:
        raise web.HTTPNotFound
    seed, width, height = (int(request.match_info[name]) for name in ("seed", "width", "height"))
    try:
        body = await asyncio.to_thread(draw, style, seed, width, height, form)
    except ValueError as error:  # a canvas the world does not draw
        raise web.HTTPNotFound(text=str(error)) from None
    # Named by the form's ending, as servers do; "cmyk.jpg" is image/jpeg.
    kind = {"jpg": "jpeg"}.get(form.rsplit(".", 1)[1], form.rsplit(".", 1)[1])
    return web.Response(body=body, content_type=f"image/{kind}")


async def flaky(request: web.Request) -> web.Response:
    seen = request.app[FLAKY_SEEN]
    if request.path not in seen:
        seen.add(request.path)
        raise web.HTTPInternalServerError
    return await scene(request)


async def redirect(request: web.Request) -> web.Response:
    """`n` hops, each to the same place with one hop fewer."""
    n = int(request.match_info["n"])
    target = request.path.removeprefix(f"/redirect/{n}")
    raise web.HTTPFound(target if n <= 1 else f"/redirect/{n - 1}{target}")


async def robots(request: web.Request) -> web.Response:
    response = await scene(request)
    response.headers["X-Robots-Tag"] = request.match_info["directive"]
    return response


async def file(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    make = FILES.get(name)
    if make is None:
        raise web.HTTPNotFound
    packed = {"Content-Encoding": "gzip"} if name == "packed.jpg" else None
    return web.Response(body=make(), content_type="image/jpeg", headers=packed)


async def status(request: web.Request) -> web.Response:
    return web.Response(status=int(request.match_info["code"]))


async def moved(request: web.Request) -> web.Response:
    target = MOVED.get(request.match_info["name"])
    if target is None:
        raise web.HTTPNotFound
    return web.Response(status=302, headers={"Location": target})


async def slow(request: web.Request) -> web.StreamResponse:
    """`silent.jpg` never answers; `endless.jpg` sends a byte now and then for ever; `huge.jpg` sends far too much."""
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
    except ConnectionError:  # the client had enough
        pass
    return response


async def alive(_: web.Request) -> web.Response:
    return web.Response(text="hypergrit demo\n")


def make_app() -> web.Application:
    """All addresses of the demo's web."""
    app = web.Application()
    app[FLAKY_SEEN] = set()
    place = r"/scene/{style}/{seed:\d+}/{width:\d+}x{height:\d+}/{form}"
    app.add_routes(
        [
            web.get("/", alive),
            web.get(place, scene),
            web.get(f"/flaky{place}", flaky),
            web.get(r"/redirect/{n:\d+}" + place, redirect),
            web.get("/robots/{directive}" + place, robots),
            web.get("/file/{name}", file),
            web.get(r"/status/{code:[2-5]\d\d}", status),
            web.get("/moved/{name}", moved),
            web.get("/slow/{name}", slow),
        ]
    )
    return app


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=PORT)
    web.run_app(make_app(), host=HOST, port=parser.parse_args().port, shutdown_timeout=0.5, access_log=None, print=None)


if __name__ == "__main__":
    main()
