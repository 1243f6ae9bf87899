"""A web server on 127.0.0.1 with images, errors, redirects, slow and hostile responses."""

import asyncio
import gzip
import io
import struct
import threading
import zlib
from collections import Counter

import numpy as np
import PIL.Image
from aiohttp import web

from tests.patience import PATIENCE_S


def jpeg(seed: int = 0, height: int = 60, width: int = 80) -> bytes:
    """A JPEG whose pixels depend on `seed`."""
    small = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), np.uint8)
    out = io.BytesIO()
    PIL.Image.fromarray(small).resize((width, height)).save(out, "JPEG", quality=90)
    return out.getvalue()


def png_header(width: int, height: int) -> bytes:
    """The header of a PNG of this size, without pixels."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + b"\0\0\0\1IDAT"


class TinyWeb:
    """A server in a thread, until `close`, on any port or a given one.

    `robots` is status and text of robots.txt (None: 404). `hits` counts the requests by path, `paths` has them in
    their order, `max_busy` is the maximum number of concurrent requests below /busy/.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.hits: Counter[str] = Counter()
        self.paths: list[str] = []
        self.bytes_sent = 0
        self.robots: tuple[int, str] | None = None
        self.busy = self.max_busy = 0
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self.thread.start()
        ready.wait()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(PATIENCE_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._start())
        ready.set()
        self.loop.run_forever()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._respond)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()
        self.port = self.runner.addresses[0][1]

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        kind, _, argument = request.match_info["path"].partition("/")
        self.hits[request.path] += 1
        self.paths.append(request.path)
        match kind:
            case "image":
                await asyncio.sleep(0.05 * (int(argument) % 3))  # so that responses are out of order
                return web.Response(body=jpeg(int(argument)))
            case "busy":
                self.busy += 1
                self.max_busy = max(self.max_busy, self.busy)
                await asyncio.sleep(0.05)
                self.busy -= 1
                return web.Response(body=jpeg(int(argument)))
            case "size":
                height, width = map(int, argument.split("x"))
                return web.Response(body=jpeg(0, height, width))
            case "status":
                return web.Response(status=int(argument))
            case "flaky":  # fails twice
                return web.Response(status=503) if self.hits[request.path] < 3 else web.Response(body=jpeg())
            case "wait":
                headers = {"Retry-After": argument}
                return (
                    web.Response(status=429, headers=headers)
                    if self.hits[request.path] < 2
                    else web.Response(body=jpeg())
                )
            case "to":
                tag = {"X-Robots-Tag": request.query["tag"]} if "tag" in request.query else {}
                return web.Response(status=302, headers={"Location": request.query["url"], **tag})
            case "loop":
                return web.Response(status=301, headers={"Location": f"/loop/{argument}x"})
            case "robots":
                return web.Response(body=jpeg(), headers={"X-Robots-Tag": request.query["tag"]})
            case "robots.txt":
                if self.robots is None:
                    return web.Response(status=404)
                status, text = self.robots
                headers = {"X-Robots-Tag": "noindex", **({"Location": text} if status in (301, 302) else {})}
                return web.Response(status=status, text=text, headers=headers)
            case "header":
                headers = dict(request.query.items())
                return web.Response(body=jpeg(), headers=headers)
            case "text":
                return web.Response(body=b"<html>moved</html>", content_type="image/jpeg")
            case "truncated":
                return web.Response(body=jpeg()[:300])
            case "bomb":
                return web.Response(body=gzip.compress(bytes(5_000_000)), headers={"Content-Encoding": "gzip"})
            case "gzipped":
                return web.Response(body=gzip.compress(jpeg()), headers={"Content-Encoding": "gzip"})
            case "png_bomb":
                return web.Response(body=png_header(9000, 9000))
            case "hang":
                await asyncio.sleep(2 * PATIENCE_S)
                return web.Response()
            case "trickle" | "endless":
                return await self._stream(request, 0.05 if kind == "trickle" else 0)
            case "cut":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            case _:
                return web.Response(status=404)

    async def _stream(self, request: web.Request, pause_s: float) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(10_000):
            await response.write(b"\xff\xd8\xff" * (1 if pause_s else 10_000))
            self.bytes_sent += 30_000
            await asyncio.sleep(pause_s)
        return response
