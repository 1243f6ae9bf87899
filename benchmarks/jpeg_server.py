"""Web server on 127.0.0.1 for the download benchmark: photograph-like JPEGs from memory, over http and https.

    python -m benchmarks.jpeg_server CERTIFICATE KEY

It prints the two ports. /SIDE/NUMBER is one of 64 JPEGs whose longer side is 500 px (about 50 KB), or of 16 of 1,500 px
(about 330 KB).
"""

import asyncio
import io
import ssl
import sys
from typing import Final

import cv2
import numpy as np
import PIL.Image
from aiohttp import web

N_IMAGES: Final = {500: 64, 1500: 16}


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


async def serve(certificate: str, key: str) -> None:
    """Print the ports of http and https, then serve until killed."""
    images = {side: [make_jpeg(i, side) for i in range(n)] for side, n in N_IMAGES.items()}

    async def respond(request: web.Request) -> web.Response:
        found = images[int(request.match_info["side"])]
        return web.Response(body=found[int(request.match_info["i"]) % len(found)], content_type="image/jpeg")

    app = web.Application()
    app.router.add_get("/{side}/{i}", respond)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    for tls in (None, context):
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    print(*(address[1] for address in runner.addresses), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
