"""Benchmark: download images, resize them to 256 px and write tars, compared with img2dataset on one core.

    python -m benchmarks.download [n_images]

`jpeg_server.py` serves 64 JPEGs (500 x 400, about 50 KB) from memory on another core. Both downloaders fetch the same
URLs in alternating rounds. img2dataset's shard loop is called directly (`Downloader`, 32 threads, webdataset, sha256,
otherwise defaults), so its startup time is not included. `ratio` compares CPU time per image, which hardly depends on
other load; `ratio_wall` compares wall-clock time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from pipeline.download.config import DownloadConfig
from pipeline.download.stage import Download
from pipeline.write.tar import TarWriter
from schemas.rows import READ

ROUNDS = 3
CONCURRENCY = 32


def build_ours(urls: list[str], folder: Path) -> Callable[[], int]:
    """Return a function that runs our download stage and tar writer. It returns the number of kept images."""
    rows = [
        {"key": f"{i:012d}", "source": "", "source_row": i, "url": url, "caption_original": f"{i}", "status": "kept"}
        for i, url in enumerate(urls)
    ]
    table = pa.Table.from_pylist(rows, schema=READ)
    download = Download(
        DownloadConfig(concurrency=CONCURRENCY, concurrency_per_host=CONCURRENCY, allowed_private_hosts=("127.0.0.1",))
    )

    def run() -> int:
        kept = [row for row in download(table).to_pylist() if row["status"] == "kept"]
        with (folder / "ours.tar").open("wb") as file, TarWriter(file) as tar:
            for row in kept:
                image, caption = row.pop("image"), row["caption_original"].encode()
                meta = json.dumps(row, sort_keys=True).encode()
                tar.add_sample(row["key"], (("jpg", image), ("txt", caption), ("json", meta)))
        return len(kept)

    return run


def build_img2dataset(urls: list[str], folder: Path) -> Callable[[], int]:
    """Return a function that runs img2dataset's shard loop. It returns the number of kept images."""
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # otherwise, importing albumentations checks for updates online
    from img2dataset.downloader import Downloader
    from img2dataset.resizer import Resizer
    from img2dataset.writer import WebDatasetSampleWriter

    shard = folder / "shard.arrow"
    table = pa.table({"url": urls, "caption": [f"{i}" for i in range(len(urls))]})
    downloader = Downloader(
        sample_writer_class=WebDatasetSampleWriter,
        resizer=Resizer(image_size=256, resize_mode="keep_ratio", resize_only_if_bigger=True),
        thread_count=CONCURRENCY,
        save_caption=True,
        extract_exif=True,
        output_folder=str(folder),
        column_list=["url", "caption"],
        timeout=10,
        number_sample_per_shard=len(urls),
        oom_shard_count=5,
        compute_hash="sha256",
        verify_hash_type=None,
        encode_format="jpg",
        retries=0,
        user_agent_token=None,
        disallowed_header_directives=["noai", "noimageai", "noindex", "noimageindex"],
    )

    def run() -> int:
        # The shard loop deletes its input at the end, so the input is written for each run.
        with pa.OSFile(str(shard), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        downloader.download_shard((0, str(shard)))
        stats: dict[str, int] = json.loads((folder / "00000_stats.json").read_text())
        return stats["successes"]

    return run


@contextmanager
def served_urls(n: int) -> Iterator[list[str]]:
    """Serve `n` image URLs from a process on the last core. Pins this process to the first core."""
    cores = sorted(os.sched_getaffinity(0))
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.jpeg_server"], stdout=subprocess.PIPE, text=True)
    try:
        os.sched_setaffinity(server.pid, {cores[-1]})
        os.sched_setaffinity(0, {cores[0]})
        assert server.stdout is not None
        port = int(server.stdout.readline())
        yield [f"http://127.0.0.1:{port}/{i}" for i in range(n)]
    finally:
        server.terminate()
        server.wait()


def time_alternately(runs: dict[str, Callable[[], int]], n: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median CPU and wall-clock seconds per image of each downloader, after a warm-up round."""
    cpu: dict[str, list[float]] = {name: [] for name in runs}
    wall: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS + 1):
        for name, run in runs.items():
            start, start_cpu = time.perf_counter(), time.process_time()
            kept = run()
            cpu[name].append((time.process_time() - start_cpu) / n)
            wall[name].append((time.perf_counter() - start) / n)
            assert kept == n, f"{name} kept {kept} of {n} images"
    cpu_s, wall_s = ({name: statistics.median(times[1:]) for name, times in kind.items()} for kind in (cpu, wall))
    return cpu_s, wall_s


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", nargs="?", type=int, default=500, help="number of images")
    n = parser.parse_args().n
    with served_urls(n) as urls, tempfile.TemporaryDirectory() as folder:
        runs = {"img2dataset": build_img2dataset(urls, Path(folder)), "ours": build_ours(urls, Path(folder))}
        cpu_s, wall_s = time_alternately(runs, n)
    print(f"{n} images, median of {ROUNDS} rounds, one core")
    print(f"{'downloader':<14}{'CPU us/image':>14}{'images/CPU-s':>14}{'images/s':>10}")
    for name in runs:
        print(f"{name:<14}{1e6 * cpu_s[name]:>14.0f}{1 / cpu_s[name]:>14.0f}{1 / wall_s[name]:>10.0f}")
    result = {
        "name": "download",
        "ratio": round(cpu_s["img2dataset"] / cpu_s["ours"], 2),
        "ratio_wall": round(wall_s["img2dataset"] / wall_s["ours"], 2),
        "images_per_cpu_s": round(1 / cpu_s["ours"]),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
