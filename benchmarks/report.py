"""Benchmark: the report of a job with 700,000 shards of 1,000 rows, from simulated summaries.

    python -m benchmarks.report [--shards 700000] [--folder DIR]

Every shard has a manifest, and every thousand shards a rollup with drawn counts: phrases, head nouns and hosts from Zipf
distributions (16 draws in turn), images of which 2 % are shared, histograms of 10^6 rows. The shards that the report shows pictures and
examples of are real ones. `report_s` and `peak_mb`: `python -m pipeline.report` in a process of its own. `fold_s`: time to
add up the summaries of 1,000 shards, counted from drawn rows, and to write their rollup, which a job does while it runs;
`summary_kb`, `rollup_kb`: sizes of the files. Nothing is extrapolated. The files need 5 kB for each shard.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.images import encode_jpeg
from pipeline.read.types import ShardPlan
from pipeline.report.rollup import roll_up
from pipeline.summary.frequent import CAPACITY, Frequent
from pipeline.summary.histogram import Histogram
from pipeline.summary.places import MAX_DROPPED, MAX_KEPT, hash_of
from pipeline.summary.summary import Summary, SummaryFile
from pipeline.write.config import WriteConfig
from pipeline.write.counts import count_rows
from pipeline.write.manifest import manifest_bytes, manifest_hash
from pipeline.write.stage import write_shard
from pipeline.write.store import Store
from pipeline.write.summary import batches_of, summarize
from schemas.files import JOB_FILE, MANIFEST_FILE, ROLLUP_FILE, SHARDS_PER_ROLLUP, SUMMARY_FILE
from schemas.layout import FLAT
from schemas.manifest import Manifest
from schemas.rows import SCORED
from schemas.status import REASONS

ROWS: Final = 1000
KEPT_SHARE: Final = 0.45
CAUSES: Final = tuple(("download", reason) for reason in REASONS["download"] if reason != "internal_error")
PHRASES, HEADS, HOSTS = 1_000_000, 30_000, 400_000
PROVENANCE: Final[Any] = {"config_hash": "0" * 64, "hypergrit": "0", "models": {"scorer": {"name": "miniature"}}}
DRAWS: Final = 16
"""Different draws of texts, which the rollups use in turn."""
ARROW: Final = WriteConfig(formats=("arrow",))

Floats = NDArray[np.float64]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=700_000, help="number of shards")
    parser.add_argument("--folder", help="where the files are written; default: a temporary folder")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="report-", dir=options.folder))
    try:
        result = {"name": "report", "shards": options.shards, **measure_fold(folder / "fold")}
        start = time.perf_counter()
        simulate(folder / "out", options.shards)
        print(f"{options.shards} shards simulated in {time.perf_counter() - start:.0f} s", flush=True)
        result |= measure_report(folder / "out")
        print(json.dumps(result), flush=True)
    finally:
        shutil.rmtree(folder)


def measure_fold(folder: Path) -> dict[str, float]:
    """Count drawn rows for the summaries of 1,000 shards, and measure adding them up."""
    rng = np.random.default_rng(0)
    template, store = write_template(folder, 0, rng), Store(str(folder))
    n_bytes = 0
    for index in range(1, SHARDS_PER_ROLLUP):
        rows = draw_rows(rng, index)
        manifest: Manifest = {**template, "shard": index, "counts": count_rows(rows, plan_of(index))}
        content = SummaryFile({index: manifest_hash(manifest)}, summarize([manifest], batches_of(rows)))
        data = content.to_bytes()
        n_bytes += len(data)
        (folder / FLAT.path(MANIFEST_FILE, index)).write_bytes(manifest_bytes(manifest))
        (folder / FLAT.path(SUMMARY_FILE, index)).write_bytes(data)
    start, cpu = time.perf_counter(), time.process_time()
    roll_up(store, 0, range(SHARDS_PER_ROLLUP))
    return {
        "fold_s": round(time.perf_counter() - start, 2),
        "fold_cpu_s": round(time.process_time() - cpu, 2),
        "summary_kb": round(n_bytes / (SHARDS_PER_ROLLUP - 1) / 1000, 1),
        "rollup_kb": round((folder / ROLLUP_FILE.format(0)).stat().st_size / 1000, 1),
    }


def measure_report(output: Path) -> dict[str, float]:
    """Draw the report of an output in a process of its own."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "pipeline.report", str(output)], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    stats = json.loads((output / "stats.json").read_text())
    assert stats["rows"]["read"] == stats["planned"] * ROWS, stats["rows"]
    assert (output / "report.html").stat().st_size > 100_000
    return {
        "report_s": round(seconds, 1),
        "report_cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mb": round(usage.ru_maxrss / 1000),
        "rollups_mb": round(sum(file.stat().st_size for file in (output / "_rollup").iterdir()) / 1e6),
    }


def simulate(output: Path, n_shards: int) -> None:
    """Write manifests and rollups, and the shards that the report shows."""
    rng = np.random.default_rng(1)
    shown = {*range(MAX_DROPPED), *sorted(range(n_shards), key=hash_of)[:MAX_KEPT]}
    for index in shown:
        template = write_template(output, index, rng)
    shutil.rmtree(output / "_summaries")
    before, _, after = manifest_bytes(template).decode().rpartition(f'"shard": {template["shard"]}')
    (output / "_rollup").mkdir()
    for first in range(0, n_shards, SHARDS_PER_ROLLUP):
        indices = range(first, min(first + SHARDS_PER_ROLLUP, n_shards))
        for index in set(indices) - shown:
            (output / FLAT.path(MANIFEST_FILE, index)).write_text(f'{before}"shard": {index}{after}')
        sizes = {index: os.path.getsize(output / FLAT.path(MANIFEST_FILE, index)) for index in indices}
        content = SummaryFile(sizes, draw_summary(indices, rng)).to_bytes()
        (output / ROLLUP_FILE.format(first // SHARDS_PER_ROLLUP)).write_bytes(content)
    record = {"batches": [{"shards": n_shards, "files": []}], "provenance": PROVENANCE}
    (output / JOB_FILE).write_text(json.dumps(record))


def write_template(output: Path, index: int, rng: np.random.Generator) -> Manifest:
    """Write a shard of drawn rows; return its manifest."""
    table = pa.Table.from_pylist(draw_rows(rng, index), schema=SCORED)
    return write_shard(table, plan_of(index), ARROW, str(output), PROVENANCE)


def plan_of(index: int) -> ShardPlan:
    """Return the plan of a shard."""
    return ShardPlan(index, index * ROWS, ROWS, ())


def zipf(n: int, exponent: float = 1.05) -> Floats:
    """Return the probabilities of n texts."""
    weights = 1 / np.arange(1, n + 1) ** exponent
    return weights / weights.sum()


P_PHRASES, P_HEADS, P_HOSTS = zipf(PHRASES), zipf(HEADS), zipf(HOSTS, 0.9)
IMAGE: Final = encode_jpeg(np.random.default_rng(0).integers(0, 255, (256, 256, 3), dtype=np.uint8))


def draw_rows(rng: np.random.Generator, index: int = 0) -> list[dict[str, Any]]:
    """Return the rows of a shard: captions of two phrases, each with a box; the others are dropped by the download."""
    phrases = rng.choice(PHRASES, (ROWS, 2), p=P_PHRASES).tolist()
    hosts = rng.choice(HOSTS, ROWS, p=P_HOSTS).tolist()
    kept, causes = (rng.random(ROWS) < KEPT_SHARE).tolist(), rng.integers(0, len(CAUSES), ROWS).tolist()
    rows = []
    for i in range(ROWS):
        key = f"{index * ROWS + i:012d}"
        row: dict[str, Any] = dict.fromkeys(SCORED.names)
        row |= {
            "key": key,
            "source": "pairs.parquet",
            "source_row": i,
            "url": f"https://host{hosts[i]}.example.org/{i}",
        }
        row["caption_original"] = caption = " and ".join(f"phrase {number}" for number in phrases[i])
        if not kept[i]:
            stage, reason = CAUSES[causes[i]]
            rows.append(row | {"status": "dropped", "stage": stage, "reason": reason, "detail": "404"})
            continue
        row |= {"status": "kept", "image": IMAGE, "width": 256, "height": 256, "original_format": "jpeg"}
        row |= {"original_width": 500 + i, "original_height": 400 + i, "sha256": random.Random(key).randbytes(32).hex()}
        rows.append(row | {"caption": caption, "clip_similarity": 0.3, **annotations(caption, phrases[i], rng)})
    return rows


def annotations(caption: str, phrases: list[int], rng: np.random.Generator) -> dict[str, Any]:
    """Return the parse of a caption of two phrases and a box for each."""
    cut = caption.index(" and ")
    spans = [(0, cut), (cut + 5, len(caption))]
    token = {"head": 0, "dep": "ROOT", "pos": "NOUN", "tag": "NN"}
    sides = rng.random((2, 2)).tolist()
    return {
        "tokens": [
            {"start": a, "end": b, **token, "lemma": f"noun {number % HEADS}"}
            for (a, b), number in zip(spans, phrases, strict=True)
        ],
        "noun_chunks": [{"start": a, "end": b, "root": i, "removed": None} for i, (a, b) in enumerate(spans)],
        "ref_exps": [],
        "boxes": [
            {"phrase": i, "x_min": 0.0, "y_min": 0.0, "x_max": x, "y_max": y, "score": 0.5 + y / 2}
            for i, (x, y) in enumerate(sides)
        ],
        "box_scores": [{"area_px": 1000.0, "clip_cosine": 0.3 + x / 10, "removed": None} for x, _ in sides],
    }


def draw_summary(indices: range, rng: np.random.Generator) -> Summary:
    """Return the summary of up to 1,000 shards with drawn counts."""
    summary, n, draw = Summary(), len(indices) * ROWS, indices.start // SHARDS_PER_ROLLUP % DRAWS
    drops = rng.multinomial(n - int(KEPT_SHARE * n), np.full(len(CAUSES), 1 / len(CAUSES))).tolist()
    n_kept, totals = n - sum(drops), summary.totals
    summary.rows.sums.update(read=n, kept=n_kept)
    summary.rows.dropped.update(dict(zip(CAUSES, drops, strict=True)))
    summary.n_bytes.update(arrow=20_000 * n)
    summary.chosen.add_kept(indices)
    for cause in CAUSES:
        summary.chosen.add_dropped(cause, indices)
    totals.kept, totals.n_grounded = n_kept, 2 * n_kept
    totals.chunks[None] = totals.boxes[None] = 2 * n_kept
    totals.phrases = draw_texts("phrase {}", PHRASES, 1.05, 2 * n_kept, draw)
    totals.heads = draw_texts("noun {}", HEADS, 1.05, 2 * n_kept, draw)
    totals.kept_heads = draw_texts("noun {}", HEADS, 1.05, 2 * n_kept, draw)
    totals.hosts = draw_texts("timeout host{}.example.org", HOSTS, 0.9, n - n_kept, draw)
    totals.host_rows = draw_texts("host{}.example.org", HOSTS, 0.9, n, draw)
    totals.http_statuses = Counter({"404": drops[0], "403": drops[1]})
    shared = rng.integers(0, 10**6, n_kept // 50).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    totals.images.add(np.concatenate([shared, rng.integers(0, 2**64, n_kept - len(shared), dtype=np.uint64)]))
    for histogram in totals.histograms.values():
        fill(histogram, 2 * n_kept, rng)
    return summary


@cache
def draw_texts(pattern: str, n_texts: int, exponent: float, n: int, seed: int) -> Frequent:
    """Return the sketch of n drawn texts, like `Frequent.shrink` of all of them."""
    counts = np.random.default_rng(seed).poisson(zipf(n_texts, exponent) * n)
    threshold = int(np.partition(counts, -CAPACITY - 1)[-CAPACITY - 1]) if len(counts) > CAPACITY else 0
    found, sketch = np.flatnonzero(counts > threshold), Frequent()
    sketch.update({pattern.format(i): int(counts[i]) - threshold for i in found.tolist()})
    sketch.error = threshold
    return sketch


def fill(histogram: Histogram, n: int, rng: np.random.Generator) -> None:
    """Count drawn values."""
    low, high = float(histogram.edges[0]), float(histogram.edges[-1])
    for name in histogram.series:
        histogram.add(name, np.clip(rng.normal((low + high) / 2, (high - low) / 6, 20_000), low, high))
        series = histogram.series[name]
        factor = n // 20_000 or 1
        series.counts *= factor
        series.fine = Counter({index: count * factor for index, count in series.fine.items()})
        series.sum *= factor


if __name__ == "__main__":
    main()
