"""Benchmark: the order of samples (data.order) on shards of one subreddit each, as in the official RedCaps tars.

    python -m benchmarks.order [--shards 350] [--samples 96]

1. Diversity. 12 million pairs of 350 subreddits with the skewed sizes of RedCaps; a shard holds one year of a
   subreddit. `ratio`: distinct subreddits in a batch of 2,048 in the order `blocks`, over those of 2,048 independent
   draws; `ratio_window`: the same in the order `window` of version 0.3.
2. Speed. Tars of 224-pixel images, one subreddit each, are read in both orders in turn, in one process without loader
   processes, batches of 256. `disk`: pairs/s of `blocks` over those of `window`, after the shards were dropped from the
   page cache; `disk_cached`: without that; `s3`: from a server of moto on this machine. `requests_per_pair` counts
   reads: `window` has 1.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

import cv2
import numpy as np
import torch
from s3fs import S3FileSystem

from demo.world.scenes import SHARD_SEEDS, scene_stream
from demo.world.sprites import TRAIN_STYLES
from pipeline.images import border_square, encode_jpeg
from pipeline.write.tar import TarWriter
from trainer.data.config import DataConfig
from trainer.data.loader import Loader
from trainer.data.order import BlockOrder, Order, WindowOrder, block_width
from trainer.text.tokenizer import openai_tokenizer

PAIRS, SUBREDDITS, YEARS = 12_000_000, 350, 12
BATCH = 2048
POSITIONS = 100
SPREAD = 0.8  # standard deviation of the logarithm of a subreddit's size
SPEED_BATCH, ROUNDS, BATCHES = 256, 5, 4
SIZE_PX = 224
SERVER = """\
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=350, help="shards of the measurement of the speed")
    parser.add_argument("--samples", type=int, default=96, help="samples of each of them")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    result = {"name": "order", **diversity()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "shards")
        write_shards(folder, options.shards, options.samples)
        disk, requests = speed(str(folder), evict=folder)
        cached, _ = speed(str(folder))
        with s3_server() as store:
            store.mkdir("shards")
            store.put(f"{folder}/", "shards/", recursive=True)
            s3, _ = speed("s3://shards")
        result |= {"disk": disk, "disk_cached": cached, "s3": s3, "requests_per_pair": requests}
    print(json.dumps(result))


def diversity() -> dict[str, float]:
    """Count the distinct subreddits of batches of both orders and of independent draws."""
    generator = np.random.default_rng(0)
    sizes = PAIRS * (shares := generator.lognormal(0, SPREAD, SUBREDDITS)) / shares.sum()
    counts = np.maximum(1, np.outer(sizes, generator.dirichlet(np.full(YEARS, 2.0)))).astype(int).ravel()
    source = np.repeat(np.arange(len(counts)) // YEARS, counts)
    positions = generator.integers(0, len(source), POSITIONS)

    def distinct(order: Order) -> float:
        return statistics.mean(len(set(source[order.take(int(at), BATCH).samples])) for at in positions)

    independent = statistics.mean(len(set(generator.choice(source, BATCH))) for _ in positions)
    blocks = distinct(BlockOrder(len(source), 0, block_width(BATCH)))
    window = distinct(WindowOrder(counts.tolist(), 0, 4000))
    print(f"distinct subreddits of {SUBREDDITS} in a batch of {BATCH}, mean of {POSITIONS} batches")
    print(f"  independent draws {independent:6.1f}\n  blocks {blocks:17.1f}\n  window {window:17.1f}")
    return {"ratio": round(blocks / independent, 3), "ratio_window": round(window / independent, 3)}


def speed(shards: str, evict: Path | None = None) -> tuple[float, float]:
    """Return pairs/s of `blocks` over those of `window`, and the reads per pair of `blocks`. The orders take turns.

    The files in `evict` are dropped from the page cache before each round.
    """
    loaders = {name: loader(shards, name) for name in ("blocks", "window")}
    batches = {name: iter(source) for name, source in loaders.items()}
    next(batches["window"])
    for _ in range(block_width(SPEED_BATCH) // SPEED_BATCH):  # until as many blocks are open as always
        next(batches["blocks"])
    before = loaders["blocks"].builder.reader.n_requests
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(ROUNDS):
        for name, stream in batches.items():
            if evict:
                drop_from_page_cache(evict)
            start = time.perf_counter()
            for _ in range(BATCHES):
                next(stream)
            rates[name].append(SPEED_BATCH * BATCHES / (time.perf_counter() - start))
    requests = (loaders["blocks"].builder.reader.n_requests - before) / (ROUNDS * BATCHES * SPEED_BATCH)
    kind = "disk" if evict else "cached disk" if "://" not in shards else "S3"
    median = {name: statistics.median(values) for name, values in rates.items()}
    print(f"{kind}: pairs/s, median of {ROUNDS} rounds: {', '.join(f'{n} {v:.0f}' for n, v in median.items())}; "
          f"{requests:.3f} reads per pair in blocks")  # fmt: skip
    for source in loaders.values():
        source.close()
    ratio = statistics.median(a / b for a, b in zip(rates["blocks"], rates["window"], strict=True))
    return round(ratio, 3), round(requests, 3)


def loader(shards: str, order: str) -> Loader:
    """Return a loader of images and captions in one of the orders, without loader processes."""
    config = DataConfig(shards=shards, workers=0, order="window" if order == "window" else "blocks")
    return Loader(config, tokenizer=openai_tokenizer(), size_px=SIZE_PX, batch=SPEED_BATCH, needs=frozenset())


def write_shards(folder: Path, n_shards: int, n_samples: int) -> None:
    """Write tars of 224-pixel images with captions, repeated from a pool."""
    folder.mkdir()
    pool = [
        (encode_jpeg(border_square(scene.image, SIZE_PX), 95), scene.caption.encode())
        for scene in islice(scene_stream(SHARD_SEEDS[0], TRAIN_STYLES), 64)
    ]
    content = cycle(pool)
    for shard in range(n_shards):
        with Path(folder, f"{shard:05d}.tar").open("wb", buffering=0) as file:
            with TarWriter(file) as tar:
                for number in range(n_samples):
                    image, caption = next(content)
                    tar.add_sample(f"{shard:05d}-{number:05d}", [("jpg", image), ("txt", caption)])
            os.fsync(file.fileno())  # the kernel drops only what is on the disk


def drop_from_page_cache(folder: Path) -> None:
    """Ask the kernel to forget the content of the files."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@contextmanager
def s3_server() -> Iterator[S3FileSystem]:
    """Start a server of moto in a process of its own, which clients find by environment variables."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin
        assert server.stdout
        os.environ.update(
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{server.stdout.readline().strip()}",
            AWS_ACCESS_KEY_ID="someone",
            AWS_SECRET_ACCESS_KEY="secret",
            AWS_DEFAULT_REGION="us-east-1",
            AWS_EC2_METADATA_DISABLED="true",
            AWS_CONFIG_FILE=os.devnull,
            AWS_SHARED_CREDENTIALS_FILE=os.devnull,
        )
        S3FileSystem.clear_instance_cache()
        try:
            yield S3FileSystem()
        finally:
            server.stdin.close()
            server.wait()


if __name__ == "__main__":
    main()
