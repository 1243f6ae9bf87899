"""Benchmark: the cost of `score.keep_all=true`, and of the filled batches of the score stage.

    python -m benchmarks.keep_all [--rows 1200] [--scorer miniature]

Rows are scenes of the demo, grounded once with the miniature model. Seconds are the CPU time of one core for the score
stage alone, medians of alternating rounds, and for the write stage; bytes are those of the files, by format. `ratio` is
the time of the score stage with keep_all over that without. `filled_ratio` is its time (without keep_all) over that with
the last batch of each call left short, in which a cosine depends on the rows beside it: besides the `embedded` images
and texts of a round, `filled` repetitions are embedded. `boxes` are those with a cosine.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import pyarrow as pa
import torch
import torch.nn.functional as F

from common.images import Image
from demo.world.layout import WorldConfig
from demo.world.scenes import TEST_SEEDS, make_scene
from pipeline.config import load_config
from pipeline.provenance import make_provenance
from pipeline.read.plan import plan_shards
from pipeline.read.types import ShardPlan
from pipeline.run import Steps
from pipeline.score.scorers import Scorer, load_scorer
from pipeline.score.stage import Score
from pipeline.score.thresholds import resolve_thresholds
from pipeline.write.stage import write_shard
from pipeline.write.tar import TarWriter

ROUNDS = 3
ROWS_PER_SHARD = 400


class ShortBatches(Scorer):
    """A scorer that leaves the last batch short, as before batches had a fixed shape."""

    def embed_images(self, images: Iterable[Image]) -> torch.Tensor:
        return short(self.encode_images, list(images), self.batch_size)

    def embed_texts(self, texts: Sequence[str]) -> torch.Tensor:
        return short(self.encode_texts, texts, self.batch_size)


def short(encode: Callable[[Any], torch.Tensor], items: Sequence[Any], size: int) -> torch.Tensor:
    """Embed items in batches of at most `size`."""
    with torch.inference_mode():
        parts = [encode(items[i : i + size]) for i in range(0, len(items), size)]
    return F.normalize(torch.cat(parts).float().cpu(), dim=-1)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1200, help="number of rows")
    parser.add_argument("--scorer", default="miniature", help="setting score.scorer")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), options.rows, options.scorer)))


def measure(folder: Path, n_rows: int, name: str) -> dict[str, Any]:
    """Return the figures."""
    write_input(folder / "in", n_rows)
    config = load_config([
        f"input={folder / 'in'}", f"output={folder / 'out'}", f"rows_per_shard={ROWS_PER_SHARD}", f"scorer={name}",
    ])  # fmt: skip
    plans = plan_shards(config.input, config.rows_per_shard, None, config.read)
    steps = Steps(config, make_provenance(config))
    tables = [steps.stage("ground")(steps.prepare(plan)[0]) for plan in plans]
    scorer = load_scorer(name, "cpu", config.score.batch_size)
    n_items, n_filled, counting = counted(scorer)
    thresholds = resolve_thresholds(config.score, config.ground.grounder)
    stages = {
        "default": Score(config.score, thresholds, counting, steps.images),
        "keep_all": Score(dataclasses.replace(config.score, keep_all=True), thresholds, scorer, steps.images),
        "short": Score(config.score, thresholds, ShortBatches(**vars(scorer)), steps.images),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in stages}
    scored: dict[str, list[pa.Table]] = {}
    for number in range(ROUNDS + 1):  # the first loads code and decodes the images
        for kind, stage in stages.items():
            if kind == "default":
                n_items.clear()
                n_filled.clear()
            start = time.process_time()
            scored[kind] = [stage(table) for table in tables]
            seconds[kind] += [time.process_time() - start] if number else []
    median = {kind: statistics.median(values) for kind, values in seconds.items()}
    writes = {kind: write(folder / kind, plans, scored[kind], steps) for kind in ("default", "keep_all")}
    kept = sum(table["status"].to_pylist().count("kept") for table in scored["default"])
    print(f"{n_rows} rows, {kept} kept, scorer {name}, median of {ROUNDS} rounds")
    print(f"{'score stage':<12}{'seconds':>10}{'ms per row':>12}")
    for kind, value in median.items():
        print(f"{kind:<12}{value:>10.2f}{1000 * value / n_rows:>12.2f}")
    print(f"{'files':<12}{'seconds':>10}  bytes by format")
    for kind, (value, sizes) in writes.items():
        print(f"{kind:<12}{value:>10.2f}  {sizes}")
    return {
        "name": "keep_all",
        "rows": n_rows,
        "kept": kept,
        "ratio": round(median["keep_all"] / median["default"], 3),
        "filled_ratio": round(median["default"] / median["short"], 3),
        "embedded": sum(n_items),
        "filled": sum(n_filled),
        "boxes": {kind: sum(map(count_boxes, scored[kind])) for kind in ("default", "keep_all")},
        "seconds": {kind: round(value, 2) for kind, value in median.items()},
        "bytes": {kind: sizes for kind, (_, sizes) in writes.items()},
    }


def write_input(folder: Path, n_rows: int) -> None:
    """Write scenes to a tar of WebDataset."""
    folder.mkdir()
    with (folder / "00000.tar").open("wb") as file, TarWriter(file) as tar:
        for i in range(n_rows):
            scene = make_scene(TEST_SEEDS.start + i, "openmoji", WorldConfig(width=384, height=288))
            _, jpeg = cv2.imencode(".jpg", scene.image[:, :, ::-1])
            tar.add_sample(f"{i:06d}", [("jpg", jpeg.tobytes()), ("txt", scene.caption.encode())])


def counted(scorer: Scorer) -> tuple[list[int], list[int], Scorer]:
    """Return lists of the sizes of the batches and of their repetitions, and a scorer that fills them."""
    items, filled = list[int](), list[int]()

    def count(encode: Callable[[Any], torch.Tensor]) -> Callable[[Any], torch.Tensor]:
        def encoded(batch: Any) -> torch.Tensor:
            last = next(i for i in range(len(batch), 0, -1) if i == 1 or batch[i - 2] is not batch[-1])
            items.append(last)
            filled.append(len(batch) - last)
            return encode(batch)

        return encoded

    images, texts = count(scorer.encode_images), count(scorer.encode_texts)
    return items, filled, dataclasses.replace(scorer, encode_images=images, encode_texts=texts)


def count_boxes(table: pa.Table) -> int:
    """Return the number of boxes with a cosine."""
    rows = table["box_scores"].to_pylist()
    return sum(score["clip_cosine"] is not None for row in rows for score in row or ())


def write(
    folder: Path, plans: Sequence[ShardPlan], tables: Sequence[pa.Table], steps: Steps
) -> tuple[float, dict[str, int]]:
    """Write shards; return the CPU seconds, and the bytes of each format."""
    start, sizes = time.process_time(), dict[str, int]()
    for plan, table in zip(plans, tables, strict=True):
        manifest = write_shard(table, plan, steps.config.write, str(folder), steps.provenance)
        for name, facts in manifest["files"].items():
            kind = name.partition("/")[0]
            sizes[kind] = sizes.get(kind, 0) + facts["bytes"]
    return time.process_time() - start, sizes


if __name__ == "__main__":
    main()
