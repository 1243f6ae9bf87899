"""Downloaders that the download benchmark compares: this project, img2dataset, and a bare asyncio client.

Each returns a function that fetches URLs on one core, prepares the images, writes a tar of images, captions and
metadata, and returns the number of images in it.
"""

import asyncio
import io
import json
import os
import ssl
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import aiohttp
import cv2
import numpy as np
import pyarrow as pa
from yarl import URL

from pipeline.images import ResizeConfig
from pipeline.output.write.tar import TarWriter
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.stage import Download
from schemas.rows import READ

CONCURRENCY: Final = 32
SIZE: Final = 256
"""Shorter side of the stored images, in pixels."""


def our_shard(urls: list[str], folder: Path, config: DownloadConfig, name: str = "ours") -> Callable[[], list[bool]]:
    """Build our download stage and tar writer, for local servers; the function returns which rows are kept."""
    rows = [
        {"key": f"{i:012d}", "source": "", "source_row": i, "url": url, "caption_original": f"{i}", "status": "kept"}
        for i, url in enumerate(urls)
    ]
    table = pa.Table.from_pylist(rows, schema=READ)
    hosts = tuple({URL(url).raw_host or "" for url in urls})
    download = Download(replace(config, concurrency_per_host=config.concurrency, allowed_private_hosts=hosts))

    def run() -> list[bool]:
        found = download(table).to_pylist()
        with (folder / f"{name}.tar").open("wb") as file, TarWriter(file) as tar:
            for row in found:
                if row["status"] == "kept":
                    image, caption = row.pop("image"), row["caption_original"].encode()
                    meta = json.dumps(row, sort_keys=True).encode()
                    tar.add_sample(row["key"], (("jpg", image), ("txt", caption), ("json", meta)))
        return [row["status"] == "kept" for row in found]

    return run


def build_ours(urls: list[str], folder: Path, is_resized: bool) -> Callable[[], int]:
    """Build our shard; without resizing, images are verified and keep their bytes."""
    resize = ResizeConfig(mode="keep_ratio" if is_resized else "none", size=SIZE)
    run = our_shard(urls, folder, DownloadConfig(concurrency=CONCURRENCY, resize=resize))
    return lambda: sum(run())


def build_client(urls: list[str], folder: Path, is_resized: bool) -> Callable[[], int]:
    """Build our shard with `download.client=img2dataset`."""
    resize = ResizeConfig(mode="keep_ratio" if is_resized else "none", size=SIZE, kernel="area")
    config = DownloadConfig(client="img2dataset", concurrency=CONCURRENCY, resize=resize)
    run = our_shard(urls, folder, config, "client")
    return lambda: sum(run())


def img2dataset_shard(
    urls: list[str], folder: Path, n_threads: int, timeout_s: float, is_resized: bool = True
) -> Callable[[], None]:
    """Build a function that downloads the URLs as shard 0 with img2dataset's shard loop and its defaults."""
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # otherwise, importing albumentations checks for updates online
    from img2dataset.downloader import Downloader
    from img2dataset.resizer import Resizer
    from img2dataset.writer import WebDatasetSampleWriter

    shard = folder / "shard.arrow"
    table = pa.table({"url": urls, "caption": [f"{i}" for i in range(len(urls))]})
    resizer = (
        Resizer(image_size=SIZE, resize_mode="keep_ratio", resize_only_if_bigger=True)
        if is_resized
        else Resizer(image_size=SIZE, resize_mode="no", resize_only_if_bigger=True, skip_reencode=True)
    )
    downloader = Downloader(
        sample_writer_class=WebDatasetSampleWriter,
        resizer=resizer,
        thread_count=n_threads,
        save_caption=True,
        extract_exif=True,
        output_folder=str(folder),
        column_list=["url", "caption"],
        timeout=timeout_s,
        number_sample_per_shard=len(urls),
        oom_shard_count=5,
        compute_hash="sha256",
        verify_hash_type=None,
        encode_format="jpg",
        retries=0,
        user_agent_token=None,
        disallowed_header_directives=["noai", "noimageai", "noindex", "noimageindex"],
    )

    def download() -> None:
        # The shard loop deletes its input at the end, so the input is written for each run.
        with pa.OSFile(str(shard), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        downloader.download_shard((0, str(shard)))

    return download


def build_img2dataset(urls: list[str], folder: Path, is_resized: bool) -> Callable[[], int]:
    """Build img2dataset's shard loop; without resizing, images are decoded and keep their bytes."""
    download = img2dataset_shard(urls, folder, CONCURRENCY, timeout_s=10, is_resized=is_resized)

    def run() -> int:
        download()
        stats: dict[str, int] = json.loads((folder / "00000_stats.json").read_text())
        return stats["successes"]

    return run


def build_bare(urls: list[str], folder: Path, is_resized: bool) -> Callable[[], int]:
    """Build what a short script does: aiohttp, OpenCV and tarfile, without checks, limits, retries and hashes.

    Without resizing, it stores what the server sends without decoding it.
    """

    def prepare(data: bytes) -> bytes:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert pixels is not None
        height, width = pixels.shape[:2]
        scale = SIZE / min(height, width)
        size = round(width * scale), round(height * scale)
        return cv2.imencode(".jpg", cv2.resize(pixels, size, interpolation=cv2.INTER_AREA))[1].tobytes()

    async def fetch(session: aiohttp.ClientSession, slots: asyncio.Semaphore, url: str) -> bytes:
        async with slots, session.get(url) as response:
            data = await response.read()
        return await asyncio.to_thread(prepare, data) if is_resized else data

    async def fetch_all() -> list[bytes]:
        slots = asyncio.Semaphore(CONCURRENCY)
        # aiohttp's own TLS context was made before the certificate of the benchmark.
        connector = aiohttp.TCPConnector(limit=CONCURRENCY, ssl=ssl.create_default_context())
        async with aiohttp.ClientSession(connector=connector) as session:
            return await asyncio.gather(*(fetch(session, slots, url) for url in urls))

    def run() -> int:
        images = asyncio.run(fetch_all())
        with tarfile.open(folder / "bare.tar", "w") as tar:
            for i, (url, image) in enumerate(zip(urls, images, strict=True)):
                meta = json.dumps({"key": f"{i:012d}", "url": url, "caption": f"{i}"}).encode()
                for suffix, data in (("jpg", image), ("txt", f"{i}".encode()), ("json", meta)):
                    info = tarfile.TarInfo(f"{i:012d}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        return len(images)

    return run
