"""Benchmark: the start and the report of a job whose output has many finished shards, by simulated ones.

    python -m benchmarks.many_shards [N_SHARDS] [N_ROWS] [FOLDER]

70,000 shards of 10,000 rows are those of COYO-700M. A simulated shard has a manifest, a summary of N_ROWS random rows (one
of four), times, and a link to an empty file in arrow/. `start` finds that all planned shards are finished; `report` adds
up the summaries, and writes stats.json and report.html. Both run in a process of their own, whose peak memory is printed.
"""

import argparse
import hashlib
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import PipelineConfig, load_config
from pipeline.output.commit import open_output
from pipeline.output.ledger import summarize
from pipeline.output.manifest import plan_json
from pipeline.output.resume import plan_work
from pipeline.output.store import Store
from pipeline.output.write.stage import write_shard
from pipeline.read.listing import list_files
from pipeline.read.types import ShardPlan
from pipeline.report.summary import report
from pipeline.run.provenance import make_provenance, with_absolute_paths
from pipeline.summary.totals import COLUMNS, VERSION, compressed, encode_json
from schemas.files import FILES, MANIFEST_FILE, SUMMARY_FILE, TIMINGS_FILE
from schemas.rows import SCORED

KINDS = 4
"""Different summaries: each is encoded once, and put into files as SummaryFile writes them."""
WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("n", "rt", "sh", "lly", "mp", "ck", "st")]
ARROW = FILES["arrow"][0]
TIMINGS = json.dumps({key: {"seconds": 1.0, "rows": 100} for key in ("read", "download", "parse", "write")}).encode()
LINKS = 30_000
"""Links to the same file; ext4 allows 65,000."""


def job(folder: Path) -> PipelineConfig:
    """Return the settings of a job on the input in a folder."""
    words = [
        f"input={folder}/in.csv",
        f"output={folder}/out",
        "rows_per_shard=1",
        "formats=[arrow]",
        "ray.runner=local",
    ]
    models = ["parse.model=none", "grounder=none", "scorer=none", "quiet=true"]
    return with_absolute_paths(load_config([*words, *models]))


def random_rows(n: int, seed: int) -> Iterator[pa.RecordBatch]:
    """Yield rows with captions of 12 words, of which some are frequent, two noun chunks and two boxes."""
    rng, names = random.Random(seed), list(COLUMNS)
    schema = pa.schema([SCORED.field(name) for name in names])
    rows: list[dict[str, Any]] = []
    for _ in range(n):
        words = [WORDS[int(len(WORDS) * rng.random() ** 3)] + rng.choice(("", "s", "er")) for _ in range(12)]
        caption, is_kept = " ".join(words), rng.random() < 0.3
        ends = [sum(map(len, words[: i + 1])) + i for i in range(12)]
        spans = [{"start": end - len(word), "end": end} for word, end in zip(words, ends, strict=True)]
        empty = {"head": 0, "dep": "dep", "pos": "NOUN", "tag": "NN"}
        box = {"x_min": 0.1, "y_min": 0.1, "x_max": rng.uniform(0.2, 1), "y_max": 0.9, "score": rng.uniform(0.5, 1)}
        chunks = [
            {"start": spans[i]["start"], "end": spans[i + 1]["end"], "root": i + 1, "removed": removed}
            for i, removed in ((0, None), (4, None), (8, "abstract"))
        ]
        rows.append(
            dict.fromkeys(names)
            | {
                "url": f"https://host{int(5000 * rng.random() ** 3)}.example.org/{rng.random()}.jpg",
                "status": "kept" if is_kept else "dropped",
                "stage": None if is_kept else "download",
                "reason": None if is_kept else rng.choice(("http_error", "timeout", "dns_error")),
                "original_width": rng.randrange(100, 2000),
                "original_height": rng.randrange(100, 2000),
                "sha256": rng.randbytes(32).hex(),
                "caption": caption,
                "tokens": [{**span, **empty, "lemma": word} for span, word in zip(spans, words, strict=True)],
                "noun_chunks": chunks,
                "boxes": [{"phrase": i, **box} for i in range(2)],
                "box_scores": [{"area_px": 9e3, "clip_cosine": rng.uniform(0, 0.4), "removed": None} for _ in range(2)],
                "clip_similarity": rng.uniform(0, 0.4),
            }
        )
    yield from pa.Table.from_pylist(rows, schema=schema).to_batches()


def make_output(folder: Path, n_shards: int, n_rows: int) -> None:
    """Write the input of a job with `n_shards`, and all shards."""
    (folder / "in.csv").write_text(
        "url,caption\n" + "".join(f"http://example.org/{i}.jpg,a\n" for i in range(n_shards))
    )
    config = job(folder)
    provenance, store = make_provenance(config), Store(config.output)
    work = plan_work(config, list_files(config.input), provenance, store)
    work.begin(store)
    manifest = write_empty(folder, config, provenance)
    kinds = []
    for seed in range(KINDS):
        batches = list(random_rows(n_rows, seed))
        table = pa.Table.from_batches(batches)
        dropped = table.filter(pc.not_equal(table["status"], "kept"))
        reasons = {item["values"]: item["counts"] for item in dropped["reason"].value_counts().to_pylist()}
        counts = {"read": n_rows, "kept": n_rows - dropped.num_rows, "dropped": {"download": reasons}}
        found = summarize({**manifest, "counts": counts}, batches)  # type: ignore[typeddict-item]
        kinds.append((counts, encode_json(found.to_json())[1:]))
    for plan in work.plans:
        (counts, summary), i = kinds[plan.index % KINDS], plan.index
        files = {ARROW.path(i): next(iter(manifest["files"].values()))}
        own = {**manifest, "shard": i, "plan": plan_json(plan), "counts": counts, "files": files}
        content = json.dumps(own, sort_keys=True).encode()
        stamp = hashlib.sha256(content).hexdigest()
        value = b'{"version":%d,"manifests":{"%d":"%s"},%s' % (VERSION, i, stamp.encode(), summary)
        sealed = compressed(value[:-1] + b',"sha256":"%s"}' % hashlib.sha256(value).hexdigest().encode())
        for kind, data in ((SUMMARY_FILE, sealed), (TIMINGS_FILE, TIMINGS), (MANIFEST_FILE, content)):
            place(store, kind.path(i)).write_bytes(data)
        source = folder / f"arrow{i // LINKS}"
        if not source.exists():
            shutil.copy(folder / "arrow", source)
        place(store, ARROW.path(i)).hardlink_to(source)


def place(store: Store, name: str) -> Path:
    """Return the path of a file of the output, whose folder exists."""
    path = Path(store.path(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_empty(folder: Path, config: PipelineConfig, provenance: Any) -> Any:
    """Write a shard without rows; return its manifest, and leave its file of arrow/ at `folder`/arrow."""
    manifest = write_shard(SCORED.empty_table(), ShardPlan(0, 0, 0, ()), config.write, str(folder / "one"), provenance)
    shutil.copy(folder / "one" / next(iter(manifest["files"])), folder / "arrow")
    return manifest


def measure(what: str, folder: Path) -> dict[str, float]:
    """Run the start of the job, or its report, in this process; return the seconds and the peak memory in MB."""
    config, start = job(folder), time.perf_counter()
    store = Store(config.output)
    if what == "start":
        work = plan_work(config, list_files(config.input), make_provenance(config), store)
        assert not work.unfinished
        assert not work.damages
    else:
        with open_output(store):
            report(config, store, range(sum(1 for _ in (folder / "in.csv").open()) - 1))
    seconds, peak = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {f"{what}_s": round(seconds, 1), f"{what}_mb": round(peak)}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n_shards", nargs="?", type=int, default=70_000)
    parser.add_argument("n_rows", nargs="?", type=int, default=10_000)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--measure", choices=("start", "report"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.folder)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        start = time.perf_counter()
        make_output(Path(name), options.n_shards, options.n_rows)
        print(f"{options.n_shards:,} shards made in {time.perf_counter() - start:.0f} s")
        found: dict[str, Any] = {"name": "many_shards", "shards": options.n_shards}
        for what in ("start", "report", "report"):
            command = [sys.executable, "-m", "benchmarks.many_shards", "1", "1", name, "--measure", what]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            values = json.loads(done.stdout.splitlines()[-1])
            print(", ".join(f"{key} {value:,}" for key, value in values.items()))
            found |= {f"second_{key}" if key in found else key: value for key, value in values.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
