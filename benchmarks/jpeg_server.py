"""Web server on 127.0.0.1 for the download benchmark. It serves 64 photograph-like JPEGs and prints its port."""

import asyncio
import io

import cv2
import numpy as np
import PIL.Image
from aiohttp import web


def make_jpeg(seed: int) -> bytes:
    """Create a 500 x 400 JPEG of about 50 KB from noise at three scales, which compresses like a photograph."""
    rng = np.random.default_rng(seed)
    layers = [rng.normal(0, 1, (400 // k, 500 // k, 3)) for k in (20, 5, 2)]
    noise = sum(weight * cv2.resize(layer, (500, 400)) for weight, layer in zip((60, 25, 8), layers, strict=True))
    out = io.BytesIO()
    PIL.Image.fromarray(np.clip(noise + 128, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=86)
    return out.getvalue()


async def serve() -> None:
    """Print the port, then serve /NUMBER until killed."""
    images = [make_jpeg(i) for i in range(64)]

    async def respond(request: web.Request) -> web.Response:
        return web.Response(body=images[int(request.match_info["i"]) % 64], content_type="image/jpeg")

    app = web.Application()
    app.router.add_get("/{i}", respond)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
