"""Access to the server: a token, names of this machine only, and headers that forbid the page everything else."""

import hmac
import ipaddress
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

logger = logging.getLogger("hypergrit")

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


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(TOKEN_BYTES)


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
            response = web.Response(status=302, headers={"Location": request.path})
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
