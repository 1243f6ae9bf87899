"""The input of the checks: rows of the demo's world under a fixed host name, and the proxy that serves their images.

The rows and the path of the input file are parts of the shards. So that the same bytes come out on every machine, the
URLs have the host `HOST`, an address for documentation, which `download.proxy` (a secret setting, not a part of the
content) leads to a free port of this machine, and the input lies in a folder of /tmp whose name is a hash of its content.
"""

import asyncio
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from aiohttp import web

from demo.make_input import make_rows, scene_row
from demo.serve import PORT, make_app, scene
from tests.patience import PATIENCE_S

HOST: Final = "http://192.0.2.1"
N_ROWS: Final = 66
NEEDS_NO_PROXY: Final = ("unknown-host", "dead-port", "no-tls", "silent", "endless")
"""Rows of the demo that fail by the connection itself, or that wait for seconds; they are left out."""
OUTAGES: Final = MappingProxyType({7: 60, 33: 61, 50: 62})
"""Scenes whose images are unavailable until the server has recovered, by their place in the input."""


class InputRow(NamedTuple):
    """A row of the input file."""

    id: str
    url: str | None
    caption: str


class Web:
    """The images, and a switch: with `is_down`, the paths below /outage/ have the status 503."""

    def __init__(self) -> None:
        self.is_down = True
        self.n_requests = 0
        self.port = 0

    @property
    def proxy(self) -> str:
        """The address of the proxy."""
        return f"http://127.0.0.1:{self.port}"

    async def outage(self, request: web.Request) -> web.StreamResponse:
        """Respond with the scene, or with the status 503."""
        return web.Response(status=503) if self.is_down else await scene(request)

    async def start(self) -> web.AppRunner:
        """Start to serve on a free port."""
        app = make_app()

        async def count(_: web.Request, __: web.StreamResponse) -> None:
            self.n_requests += 1

        app.on_response_prepare.append(count)
        app.router.add_get(r"/outage/scene/{style}/{seed:\d+}/{width:\d+}x{height:\d+}/{variant}", self.outage)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = int(runner.addresses[0][1])
        return runner


@contextmanager
def serving() -> Iterator[Web]:
    """Serve the images from a thread until the context ends."""
    images, loop = Web(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(images.start(), loop).result(PATIENCE_S)
    try:
        yield images
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def input_rows() -> list[InputRow]:
    """Return the rows of the input: most are scenes, and the others fail in different ways."""
    base = f"http://127.0.0.1:{PORT}"
    found = [row for row in make_rows(N_ROWS, PORT) if not row.id.endswith(NEEDS_NO_PROXY)]
    for place, scene_index in OUTAGES.items():
        found.insert(place, scene_row(scene_index, base, prefix="/outage", variant="plain.jpg"))
    rows = [InputRow(row.id, row.url and row.url.replace(base, HOST), row.caption) for row in found]
    url = f"{HOST}/scene/twemoji/1100000061/384x288/plain.jpg"
    rows.insert(20, InputRow("bad-no-box", url, "a red balloon near a cat and a dog"))  # the scene has none of these
    return rows


def write_input(rows: Sequence[InputRow]) -> Path:
    """Write the rows to a file whose path depends on its content alone; an existing file stays as it is."""
    text = "".join(json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in rows)
    folder = Path("/tmp") / f"hypergrit-e2e-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    path = folder / "pairs.jsonl"
    folder.mkdir(exist_ok=True)
    if not path.is_file() or path.read_text("utf-8") != text:
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as draft:
            draft.write(text)
        os.chmod(draft.name, 0o644)
        os.replace(draft.name, path)
    return path
