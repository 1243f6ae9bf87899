"""Stage `download`: concurrent requests on one event loop, decoding in threads, rows in their original order."""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pyarrow as pa
import uvloop

from common.images import ImageRejected, decode_reduced, is_cheap
from pipeline.download.config import DownloadConfig
from pipeline.download.fetch import FetchError, Request, fetch, new_session, parse_url
from pipeline.images import MAX_SIDE_PX, encode_jpeg, resize_as
from schemas.rows import DOWNLOADED
from schemas.table import Drop, add_columns, drop_rows, kept_indices, set_column


@dataclass(frozen=True)
class Outcome:
    """The result for a row: its new fields, and the image bytes to store or the drop."""

    fields: dict[str, Any]
    image: bytes | None = None
    drop: Drop | None = None


class Download:
    """Fetch, verify, resize and encode images. Takes a READ table and returns a DOWNLOADED table.

    Nothing is fetched for rows that already have an image (tars). A row is dropped if its image cannot be fetched or
    decoded, exceeds a limit of the configuration, or repeats image and caption of an earlier row.

    >>> import numpy as np
    >>> from schemas.rows import READ
    >>> image = encode_jpeg(np.zeros((512, 768, 3), np.uint8))
    >>> row = {"key": "000000000000", "source": "a.tar", "source_row": 0, "status": "kept", "image": image}
    >>> table = Download(DownloadConfig())(pa.Table.from_pylist([row], schema=READ))
    >>> table.select(["width", "height", "original_width", "original_height"]).to_pylist()
    [{'width': 384, 'height': 256, 'original_width': 768, 'original_height': 512}]
    """

    def __init__(self, config: DownloadConfig) -> None:
        self.config = config

    def __call__(self, table: pa.Table) -> pa.Table:
        kept = kept_indices(table)
        urls, images, captions = (table[name].to_pylist() for name in ("url", "image", "caption_original"))
        keys = table["key"].to_pylist()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(self._fetch_all([(urls[i], images[i]) for i in kept]))
        outcomes = dict(zip(kept, found, strict=True))
        drops = {i: outcome.drop for i, outcome in outcomes.items() if outcome.drop is not None}
        drops |= find_duplicates({i: outcomes[i] for i in kept if i not in drops}, captions, keys)
        table = add_columns(table, DOWNLOADED, {i: outcome.fields for i, outcome in outcomes.items()})
        stored = [outcomes[i].image if i in outcomes else None for i in range(table.num_rows)]
        return drop_rows(set_column(table, "image", pa.array(stored, pa.binary())), "download", drops)

    async def _fetch_all(self, rows: list[tuple[str | None, bytes | None]]) -> list[Outcome]:
        """The outcomes of `rows` (URL, image bytes or None), in their order."""
        slots = Slots(self.config)
        with ThreadPoolExecutor(self.config.decode_threads, thread_name_prefix="decode") as pool:
            async with new_session(self.config) as session:
                outcomes = (
                    self._prepare(image, pool) if image is not None else self._fetch(url or "", session, slots, pool)
                    for url, image in rows
                )
                return await asyncio.gather(*outcomes)

    async def _fetch(
        self, url: str, session: aiohttp.ClientSession, slots: "Slots", pool: ThreadPoolExecutor
    ) -> Outcome:
        """Fetch the image of a row, from one host after the other if it is redirected."""
        try:
            request = Request(parse_url(url), self.config.deadline_s)
            while True:
                async with slots.at(request.host):
                    found = await fetch(session, request, self.config)
                    if isinstance(found, bytes):
                        return await self._prepare(found, pool)
                request = found
        except FetchError as error:
            return Outcome({}, drop=error.drop)

    async def _prepare(self, data: bytes, pool: ThreadPoolExecutor) -> Outcome:
        if self.config.decode_threads == 1 and is_cheap(data, self.config.limits):
            return prepare_image(data, self.config)
        return await asyncio.get_running_loop().run_in_executor(pool, prepare_image, data, self.config)


class Slots:
    """Limits on the number of concurrent requests, in total and per host."""

    def __init__(self, config: DownloadConfig) -> None:
        self._total = asyncio.Semaphore(config.concurrency)
        self._per_host = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(config.concurrency_per_host))

    @asynccontextmanager
    async def at(self, host: str) -> AsyncIterator[None]:
        """Wait for a slot for `host`, and occupy it until the context ends."""
        # The semaphore of the host is first: rows that wait for a slow host must not occupy slots of the others.
        async with self._per_host[host], self._total:
            yield


def prepare_image(data: bytes, config: DownloadConfig) -> Outcome:
    """Verify, rotate, resize and encode one image; an upright RGB JPEG of the right size keeps its bytes."""
    fields: dict[str, Any] = {"sha256": hashlib.sha256(data).hexdigest()}
    if len(data) > config.max_bytes:
        return Outcome(fields, drop=Drop("too_many_bytes", f"more than {config.max_bytes}"))
    try:
        decoded = decode_reduced(data, config.limits, None if config.resize.mode == "none" else config.resize.size)
    except ImageRejected as error:
        return Outcome(fields, drop=Drop(error.reason, error.detail))
    pixels = resize_as(decoded.pixels, config.resize)
    height, width = pixels.shape[:2]
    if max(height, width) > MAX_SIDE_PX:  # possible with resize.mode=none and high limits
        detail = f"{width} x {height} px, but the side of a JPEG has at most {MAX_SIDE_PX}"
        return Outcome(fields, drop=Drop("too_many_pixels", detail))
    fields |= {
        "width": width,
        "height": height,
        "original_width": decoded.original_width,
        "original_height": decoded.original_height,
        "original_format": decoded.original_format,
    }
    is_unchanged = decoded.is_plain and (width, height) == (decoded.original_width, decoded.original_height)
    return Outcome(fields, data if is_unchanged else encode_jpeg(pixels, config.resize.jpeg_quality))


def find_duplicates(outcomes: dict[int, Outcome], captions: list[str | None], keys: list[str]) -> dict[int, Drop]:
    """Drop rows (by position) that repeat image and caption of an earlier row, whose key becomes the detail."""
    first: dict[tuple[str, str | None], str] = {}
    drops: dict[int, Drop] = {}
    for i, outcome in sorted(outcomes.items()):
        content = (outcome.fields["sha256"], captions[i])
        if content in first:
            drops[i] = Drop("duplicate", first[content])
        else:
            first[content] = keys[i]
    return drops
