"""Benchmark: the explorer on 10^6 rows, driven in headless Chromium.

    python -m benchmarks.explore [--rows 1000000] [--source out/demo]

The rows of a finished output (the demo's, `make demo`) are repeated up to shards of 5,000 rows; one such shard is
written with its images, and the others are links to its files. `index_s`: time to build the index, once for an output.
`load_s`: time until the page shows its first rows. Each action is a change of a field, as a reader makes it, until the
browser has drawn the result; `slowest_ms` is the highest of their medians, of setting and clearing a field 3 times.
`slowest_cpu_ms` is the same in CPU time of the page's main thread, which does not depend on other programs. `ratio`: 1 s
over `slowest_ms`.
"""

import argparse
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from hypergrit_common.config import RESOLVED_FILE
from pipeline.config import WriteConfig
from pipeline.output.source import Source, read_table
from pipeline.output.write.stage import write_shard
from pipeline.read.types import Piece, ShardPlan
from schemas.table import set_column

SHARD_ROWS: Final = 5000
REPEATS: Final = 3
FLAGS: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
ACTIONS: Final = {
    "search a word": ("q", "car"),
    "search a frequent word": ("q", "a"),
    "search two words": ("q", "red car"),
    "search what is not there": ("q", "zebra crossing"),
    "status": ("status", "kept"),
    "reason": ("reason", "download:http_error"),
    "host": ("host", "127.0.0.1"),
    "input file": ("source", "pairs"),
    "size of the image": ("image_min", "300"),
    "phrase": ("phrase", "red"),
    "label": ("label", "car"),
    "result of the filters": ("box", "low_clip_score"),
    "grounding score": ("score_min", "0.7"),
    "CLIPScore": ("clip_max", "1.2"),
    "side": ("side_min", "100"),
    "threshold of the grounding score": ("min_score", "0.75"),
    "threshold of the CLIPScore": ("min_clip_score", "1.3"),
    "threshold of the side": ("min_side_px", "64"),
}
"""Action -> name of the field and its new value."""
TIMER: Final = """async ([name, value]) => {
  const field = document.querySelector(`[name=${name}]`), before = document.querySelector('#count').textContent;
  const kind = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), 'value');
  const drawn = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))));
  const start = performance.now();
  kind.set.call(field, value);
  field.dispatchEvent(new Event(field.localName === 'select' ? 'change' : 'input', { bubbles: true }));
  const fragment = new URLSearchParams({ [name]: value }).toString();
  while (value !== '' && !location.hash.includes(fragment) || value === '' && location.hash.includes(`${name}=`)) await drawn();
  await drawn();
  return [performance.now() - start, document.querySelector('#count').dataset.n, document.querySelector('#kept').dataset.rows];
}"""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="number of rows")
    parser.add_argument("--source", default="out/demo", help="finished output whose rows are repeated")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name, "output"), Path(name, "cache")
        n_rows = repeat(options.source, folder, options.rows)
        start = time.perf_counter()
        server = subprocess.Popen(
            [sys.executable, "-m", "hypergrit", "explore", str(folder), f"cache={cache}", f"marks={name}/marks.csv"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            match = re.search(r"http://\S+", server.stdout.readline())
            assert match is not None, "the explorer did not start"
            index_s = time.perf_counter() - start
            load_s, actions = drive(match[0], n_rows)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()
        index_bytes = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    slowest, slowest_cpu = (max(times) for times in zip(*actions.values(), strict=True))
    print(json.dumps({
        "name": "explore", "ratio": round(1000 / slowest, 2), "rows": n_rows, "slowest_ms": round(slowest),
        "slowest_cpu_ms": round(slowest_cpu),
        "index_s": round(index_s, 1), "index_mb": round(index_bytes / 1e6), "load_s": round(load_s, 1),
    }))  # fmt: skip


def repeat(name: str, folder: Path, n_rows: int) -> int:
    """Write an output of at least `n_rows` rows from those of another; return the number of its rows."""
    source = Source(os.path.abspath(name))
    table = pa.concat_tables([read_table(source.output, source.shard(index)) for index in source.manifests])
    table = pa.concat_tables([table] * math.ceil(SHARD_ROWS / table.num_rows)).slice(0, SHARD_ROWS)
    table = set_column(table, "key", pa.array([f"{row:012d}" for row in range(SHARD_ROWS)]))
    provenance = next(iter(source.manifests.values()))["provenance"]
    plan = ShardPlan(0, 0, SHARD_ROWS, (Piece("pairs.parquet", 0, SHARD_ROWS, 0),))
    folder.mkdir()
    write_shard(table, plan, WriteConfig(formats=("arrow", "grit")), str(folder), provenance)
    shutil.copy(Path(name, RESOLVED_FILE), folder)
    text = (folder / "_manifests/00000.json").read_text(encoding="utf-8")
    n_shards = math.ceil(n_rows / SHARD_ROWS)
    for shard in range(1, n_shards):
        for path in ("arrow/{}.arrow", "grit/{}.tar", "grit/{}.parquet", "_index/{}.arrow"):
            os.link(folder / path.format("00000"), folder / path.format(f"{shard:05d}"))
        manifest = json.loads(text.replace("00000.", f"{shard:05d}."))
        (folder / f"_manifests/{shard:05d}.json").write_text(json.dumps({**manifest, "shard": shard}))
    return n_shards * SHARD_ROWS


def drive(url: str, n_rows: int) -> tuple[float, dict[str, tuple[float, float]]]:
    """Return the seconds until the page is there, and the milliseconds of each action, wall clock and CPU."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS), timeout=120_000)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(300_000)
        start = time.perf_counter()
        page.goto(url)
        page.wait_for_selector(f"#count[data-n='{n_rows}']")
        load_s = time.perf_counter() - start
        page.locator("details.thresholds > summary").click()
        page.wait_for_selector("#kept")
        metrics = page.context.new_cdp_session(page)
        metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
        actions = {action: measure(page, metrics, action, *field) for action, field in ACTIONS.items()}
        browser.close()
    return load_s, actions


def measure(page: Any, metrics: Any, action: str, name: str, value: str) -> tuple[float, float]:
    """Return the medians of the milliseconds of setting and clearing a field, wall clock and CPU, and print them."""
    wall, cpu = list[float](), list[float]()
    for _ in range(REPEATS):
        start = cpu_ms(metrics)
        milliseconds, n_rows, n_kept = page.evaluate(TIMER, [name, value])
        wall.append(milliseconds)
        cpu.append(cpu_ms(metrics) - start)
        if name.startswith("min_"):
            page.locator("button[name=thresholds]").click()
        else:
            wall.append(page.evaluate(TIMER, [name, ""])[0])
    medians = statistics.median(wall), statistics.median(cpu)
    times = f"{medians[0]:6.0f} ms, {medians[1]:4.0f} ms of CPU"
    print(f"{times}  {action}: {name}={value}, {n_rows} rows selected, {n_kept} rows kept")
    return medians


def cpu_ms(metrics: Any) -> float:
    """Return the CPU time of the tasks of the page's main thread so far, in milliseconds."""
    found = {metric["name"]: metric["value"] for metric in metrics.send("Performance.getMetrics")["metrics"]}
    return 1000 * float(found["TaskDuration"])


if __name__ == "__main__":
    main()
