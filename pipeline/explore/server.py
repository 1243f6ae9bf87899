"""The web server of the explorer: the page, the index, images and rows of the output, and marks."""

import asyncio
import hmac
import ipaddress
import json
import logging
import mimetypes
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from aiohttp import web
from aiohttp.typedefs import Middleware

from hypergrit_common.config_help import print_text
from hypergrit_common.errors import UserError
from hypergrit_common.text import one_line
from hypergrit_common.urls import without_user
from pipeline.explore.config import ExploreOptions
from pipeline.explore.marks import MarkFile
from pipeline.explore.site import SITE_FILE, Output, code_files, index_files, read_disk, site
from pipeline.summary.totals import encode_json

# Access to the server: a token, names of this machine only, and headers that forbid the page everything else.

logger = logging.getLogger("hypergrit")
QUIET: Final = logging.Logger("requests", logging.CRITICAL + 1)
"""Takes what aiohttp logs: tracebacks of requests that are no HTTP. Those of the handlers go to `logger`."""

TOKEN_BYTES: Final = 16
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_loopback(address: str) -> bool:
    """Return True if only this machine can reach an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def is_own_name(host: str, address: str) -> bool:
    """Return True if a Host header names this server, and not a name of someone else that leads to it (DNS rebinding).

    A server that other machines may reach accepts all IP addresses.
    """
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.strip("[]") in ("localhost", address, "127.0.0.1", "::1"):
        return True
    if is_loopback(address):
        return False
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.lower() in (socket.gethostname().lower(), socket.getfqdn().lower())
    return True


def guard(token: str, address: str) -> Middleware:
    """Return a middleware that lets requests with the token pass, and adds HEADERS to all responses.

    The token comes in the query of the first request; from then on, the browser keeps it as a cookie.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await checked(request, handler)
        except web.HTTPException as error:
            response = web.Response(status=error.status, text=error.text)
        except Exception:  # aiohttp's own response would lack the headers
            logger.exception("%s %s", request.method, request.path)
            response = web.Response(status=500, text="a bug; the terminal of the explorer has more")
        response.headers.update(HEADERS)
        return response

    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_own_name(request.host, address):
            raise web.HTTPForbidden(text="the Host header names another server")
        cookie = f"hypergrit_{request.url.port}"
        given = request.query.get("token")
        if given is not None and same(given, token):
            response = web.Response(status=302, headers={"Location": "/"})  # never what the address asked for
            response.set_cookie(cookie, token, httponly=True, samesite="Strict", path="/")
            return response
        if not same(request.cookies.get(cookie, ""), token):
            raise web.HTTPForbidden(text="open the address that the command printed; it contains a token")
        if request.method == "POST" and request.headers.get("Origin") != f"{request.scheme}://{request.host}":
            raise web.HTTPForbidden(text="the request comes from another page")
        return await handler(request)

    return check


def same(given: str, token: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


TYPES: Final = {".arrow": "application/vnd.apache.arrow.file", ".js": "text/javascript", ".json": "application/json"}
CACHED: Final = {"Cache-Control": "private, max-age=3600"}
"""Headers of files whose paths contain the hash of the output."""
CHANGED: Final = "the output has changed or cannot be read; start the explorer again"
MAX_BODY_BYTES: Final = 4096


class Explorer:
    """The handlers. Only the listed files, and rows and images of the output, can be requested."""

    def __init__(self, output: Output, options: ExploreOptions, token: str) -> None:
        """Read the files of the page and the marks. Raises UserError if the marks cannot be read."""
        self.output = output
        self.marks = MarkFile(Path(options.marks))
        self.files = code_files() | index_files(output)
        disks = [*map(read_disk, options.disk)]
        self.site = encode_json(site(output, disks, marks=options.marks, token=token))

    def app(self, token: str, address: str) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[guard(token, address)], client_max_size=MAX_BODY_BYTES)
        folder = f"/{self.output.folder}"
        app.router.add_get(folder + r"/rows/{shard:\d{5,9}}-{chunk:\d{5,9}}.json", self.rows)
        app.router.add_get(folder + r"/images/{shard:\d{5,9}}/{number:\d{6,9}}.jpg", self.image)
        app.router.add_get("/marks", self.get_marks)
        app.router.add_post("/marks", self.set_mark)
        app.router.add_get("/{path:.*}", self.file)
        return app

    async def file(self, request: web.Request) -> web.StreamResponse:
        """Return a file of the page or of an index."""
        name = request.match_info["path"] or "index.html"
        kind = TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "text/plain"
        if name == SITE_FILE:
            return web.Response(body=self.site, content_type=kind)
        if name not in self.files:
            raise web.HTTPNotFound(text="no such file")
        headers = CACHED if name.startswith("data/") else {"Cache-Control": "no-cache"}
        text = "; charset=utf-8" if kind.startswith("text/") else ""
        return web.FileResponse(self.files[name], headers={**headers, "Content-Type": kind + text})

    async def rows(self, request: web.Request) -> web.Response:
        """Return the details of a chunk of rows."""
        shard, chunk = int(request.match_info["shard"]), int(request.match_info["chunk"])
        rows = await read(lambda: self.output.shards.get(shard).details(chunk))
        return web.Response(body=encode_json(rows), content_type="application/json", headers=CACHED)

    async def image(self, request: web.Request) -> web.Response:
        """Return the stored image of a row."""
        shard, number = int(request.match_info["shard"]), int(request.match_info["number"])
        image = await read(lambda: self.output.shards.get(shard).image(number))
        if image is None:
            raise web.HTTPNotFound(text="the image is not stored")
        return web.Response(body=image, content_type="image/jpeg", headers=CACHED)

    async def get_marks(self, _: web.Request) -> web.Response:
        """Return key, box and mark of all marked boxes."""
        try:
            marks = await asyncio.to_thread(self.marks.marks, self.output.index)
        except UserError as error:
            raise web.HTTPInternalServerError(text=str(error)) from error
        return web.Response(body=encode_json(marks), content_type="application/json")

    async def set_mark(self, request: web.Request) -> web.Response:
        """Write the mark of a box: {"shard", "number", "box", "mark"}."""
        try:
            mark = json.loads(await request.text())
            shard, number, box = (int(mark[name]) for name in ("shard", "number", "box"))
            text = str(mark["mark"])
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError, web.RequestPayloadError) as error:
            raise web.HTTPBadRequest(text="not a mark") from error
        row = await read(lambda: self.output.shards.get(shard).row(number))
        try:
            await asyncio.to_thread(self.marks.set, row, box, text)
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        except UserError as error:
            raise web.HTTPInternalServerError(text=str(error)) from error
        return web.Response(status=204)


async def read(work: Any) -> Any:
    """Call a function that reads an output in a thread; convert its errors to responses."""
    try:
        return await asyncio.to_thread(work)
    except (KeyError, IndexError) as error:
        raise web.HTTPNotFound(text="no such row") from error
    except (pa.ArrowException, OSError, UserError) as error:
        raise web.HTTPServiceUnavailable(text=CHANGED) from error


async def serve(output: Output, options: ExploreOptions) -> None:
    """Serve the page until the process is interrupted. Raises UserError if the server cannot listen."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    runner = web.AppRunner(Explorer(output, options, token).app(token, options.address), access_log=None, logger=QUIET)
    await runner.setup()
    try:
        await web.TCPSite(runner, options.address, options.port).start()
        port = runner.addresses[0][1]
        if not is_loopback(options.address):
            print_text(f"warning: address={options.address} lets other machines reach the page, without encryption")
        print_text(f"{without_user(output.name)}: {url(options.address, port, token)}")
        print_text(f"marks: {options.marks}; press Ctrl-C to stop")
        await asyncio.Event().wait()
    except OSError as error:
        raise UserError(
            f"address={options.address} port={options.port} cannot be used: {one_line(error)}; give another port="
        ) from error
    finally:
        with suppress(asyncio.CancelledError):
            await runner.cleanup()


def url(address: str, port: int, token: str) -> str:
    """Return the address of the page."""
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}/?token={token}"
