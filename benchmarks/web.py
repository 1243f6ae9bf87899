"""Webs on loopback for the benchmarks of downloads: photograph-like JPEGs, and one with slow, broken and dead parts.

    python -m benchmarks.web CERTIFICATE KEY   prints the ports of http and https, and serves until killed
    python -m benchmarks.web                   prints the ports of the name server and of the bad web, and serves until killed

In the first, /SIDE/NUMBER is one of 64 JPEGs whose longer side is 500 px (about 50 KB), or of 16 of 1,500 px (about 330
KB). In the second, for bad_hosts.py, a host name says what happens: KIND-NUMBER.dMILLISECONDS.test is answered after that
time. KIND is `ok`, `hole` (the address drops all packets), `fail` (SERVFAIL after 3 s) or `mute` (no answer).
/MILLISECONDS/NUMBER is an image that takes that time. `patch_names` points `socket.getaddrinfo` of a process to the name
server; neither needs root.
"""

import asyncio
import io
import ipaddress
import random
import resource
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

import cv2
import numpy as np
import PIL.Image
from aiohttp import web

N_IMAGES: Final = {500: 64, 1500: 16}
"""Images by their longer side in pixels."""

N_HOLES = 32
SERVFAIL_S = 3.0
QUERY_S, QUERIES = 5.0, 2
"""The defaults of the resolver of libc: it waits five seconds for an answer, twice."""

SERVFAIL, NXDOMAIN = 2, 3


def make_jpeg(seed: int, side: int = 500) -> bytes:
    """Create a JPEG of `side` x 0.8 `side` px from noise at several scales, which compresses like a photograph."""
    width, height = side, side * 4 // 5
    rng = np.random.default_rng(seed)
    scales = {20: 60, 5: 25, 2: 8} if side < 1000 else {60: 60, 15: 25, 5: 12, 2: 6}
    noise = sum(
        weight * cv2.resize(rng.normal(0, 1, (height // scale, width // scale, 3)), (width, height))
        for scale, weight in scales.items()
    )
    out = io.BytesIO()
    PIL.Image.fromarray(np.clip(noise + 128, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=86)
    return out.getvalue()


async def start(path: str, respond: Callable[..., Any], *contexts: ssl.SSLContext | None) -> web.AppRunner:
    """Serve a path on a free port of this machine for each TLS context; None is http."""
    app = web.Application()
    app.router.add_get(path, respond)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    for tls in contexts:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    return runner


async def serve_jpegs(certificate: str, key: str) -> None:
    """Print the ports of http and https, then serve until killed."""
    images = {side: [make_jpeg(i, side) for i in range(n)] for side, n in N_IMAGES.items()}

    async def respond(request: web.Request) -> web.Response:
        found = images[int(request.match_info["side"])]
        return web.Response(body=found[int(request.match_info["i"]) % len(found)], content_type="image/jpeg")

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    runner = await start("/{side}/{i}", respond, None, context)
    print(*(address[1] for address in runner.addresses), flush=True)
    await asyncio.Event().wait()


def hole_address(number: int) -> str:
    return f"127.0.1.{1 + number % N_HOLES}"


class NameServer(asyncio.DatagramProtocol):
    """A DNS server that delays or suppresses its answers as the names say."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        labels, rest = [], 12
        while data[rest]:
            labels.append(data[rest + 1 : rest + 1 + data[rest]].decode())
            rest += 1 + data[rest]
        question = data[12 : rest + 5]
        kind, _, number = labels[0].partition("-")
        delay_s = SERVFAIL_S if kind == "fail" else int(labels[1][1:]) / 1000
        if kind == "mute":
            return
        code = {"ok": 0, "hole": 0, "fail": SERVFAIL}.get(kind, NXDOMAIN)
        answer = b""
        if code == 0:
            found = hole_address(int(number)) if kind == "hole" else "127.0.0.1"
            answer = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton(found)
        header = data[:2] + struct.pack(">HHHHH", 0x8180 | code, 1, 1 if answer else 0, 0, 0)
        asyncio.get_running_loop().call_later(delay_s, self.transport.sendto, header + question + answer, address)


def patch_names(port: int) -> None:
    """Let `socket.getaddrinfo` of this process ask the name server at 127.0.0.1:port for all names."""
    original = socket.getaddrinfo

    def getaddrinfo(host: Any, service: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0) -> Any:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (ask(host, port), service or 0))]
        return original(host, service, family, type, proto, flags)

    socket.getaddrinfo = getaddrinfo  # type: ignore[assignment]


def ask(host: str, port: int) -> str:
    """Ask the name server for an address, as libc does. Raises gaierror."""
    number = random.getrandbits(16)
    name = b"".join(bytes([len(label)]) + label.encode() for label in host.split(".")) + b"\0"
    query = struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0) + name + struct.pack(">HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.connect(("127.0.0.1", port))
        asker.settimeout(QUERY_S)
        for _ in range(QUERIES):
            asker.send(query)
            try:
                answer = asker.recv(512)
            except TimeoutError:
                continue
            code = answer[3] & 15
            if code:
                kind = socket.EAI_AGAIN if code == SERVFAIL else socket.EAI_NONAME
                raise socket.gaierror(
                    kind, "Temporary failure in name resolution" if code == SERVFAIL else "No such name"
                )
            return socket.inet_ntoa(answer[-4:])
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


def open_hole(address: str, port: int) -> list[socket.socket]:
    """Occupy an address whose queue of connections is full, so that the kernel drops all further packets."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex((address, port))
        fillers.append(filler)
    return [listener, *fillers]


async def serve_bad_web() -> None:
    """Print both ports, then serve until killed."""
    images = [make_jpeg(i) for i in range(16)]

    async def respond(request: web.Request) -> web.Response:
        await asyncio.sleep(int(request.match_info["ms"]) / 1000)
        return web.Response(body=images[int(request.match_info["i"]) % len(images)], content_type="image/jpeg")

    runner = await start("/{ms}/{i}", respond, None)
    port = runner.addresses[0][1]
    holes = [part for i in range(N_HOLES) for part in open_hole(hole_address(i), port)]
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(NameServer, ("127.0.0.1", 0))
    print(transport.get_extra_info("sockname")[1], port, flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the parent closes the pipe or dies
    for part in holes:
        part.close()
    await runner.cleanup()


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(serve_jpegs(*sys.argv[1:]))
    else:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
        asyncio.run(serve_bad_web())
