"""Benchmark: how full the batches of the models are, and the memory of a shard. `python -m benchmarks.batches`

The stages `ground` and `score` of the pipeline run on drawn rows, with networks that only count. Pictures have aspect
ratios as on the web (log-normal, 0.35) and are padded as for GLIP at 800 px; a caption has one to four phrases, a phrase
has a box with a probability of 0.8, and an image has 50 kB. Half of the rows of a shard have been dropped before. The last
line is one JSON object; `ratio` is the lowest fill with the most rows over 0.95, the aim.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import torch

from hypergrit_common.images import Image
from pipeline.stages.ground.glip.config import DetectConfig
from pipeline.stages.ground.glip.predict import network_size, padded_size
from pipeline.stages.ground.grounder import Detection, Grounded, Span
from pipeline.stages.ground.load import GroundConfig
from pipeline.stages.ground.stage import Ground
from pipeline.stages.score.filters import ScoreConfig, Thresholds
from pipeline.stages.score.scorers import Scorer
from pipeline.stages.score.stage import Score
from schemas.rows import PARSED

IMAGE_BYTES, KEPT_SHARE, BOX_SHARE, AIM = 50_000, 0.5, 0.8, 0.95
WORDS = ("a dog", "the red car", "two small birds", "an old wooden table")


class CountingGrounder:
    """A grounder that finds a box for most phrases, and counts its images and batches."""

    def __init__(self) -> None:
        self.sizes, self.rng = list[int](), Random(1)

    def bucket(self, height: int, width: int) -> tuple[int, int]:
        """Return the padded size of an image."""
        return padded_size(network_size(height, width, DetectConfig()))

    def prepare(self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]) -> list[int]:
        """Return the number of phrases of each image."""
        return [len(found) for found in spans]

    def forward(self, batch: list[int]) -> list[int]:
        """Count a batch."""
        self.sizes.append(len(batch))
        return batch

    def collect(self, batch: list[int]) -> list[Grounded]:
        """Return boxes side by side."""
        side_by_side = ([Detection(k, (k / n, 0.0, (k + 1) / n, 0.9), 0.9) for k in range(n)] for n in batch)
        return [Grounded(boxes=[d for d in boxes if self.rng.random() < BOX_SHARE]) for boxes in side_by_side]


def make_table(n_rows: int, seed: int) -> pa.Table:
    """Return the PARSED table of a shard with this number of input rows."""
    rng, rows = Random(seed), list[dict[str, Any]]()
    jpeg = cv2.imencode(".jpg", np.zeros((16, 16, 3), np.uint8))[1].tobytes()
    n = IMAGE_BYTES - len(jpeg) - 4
    image = jpeg[:2] + b"\xff\xfe" + (n + 2).to_bytes(2, "big") + rng.randbytes(n) + jpeg[2:]  # a comment fills it up
    for i in range(n_rows):
        ratio = min(max(math.exp(rng.gauss(0.2, 0.35)), 0.33), 3.0)
        width, height = (round(256 * ratio), 256) if ratio > 1 else (256, round(256 / ratio))
        phrases = rng.sample(WORDS, rng.randint(1, 4))
        caption = f"{' beside '.join(phrases)} {i}"
        starts = [caption.index(phrase) for phrase in phrases]
        chunks = [{"start": s, "end": s + len(p), "root": s} for s, p in zip(starts, phrases, strict=True)]
        row = {"key": f"{i:012d}", "source": "made", "source_row": i, "caption": caption, "noun_chunks": chunks}
        if rng.random() < KEPT_SHARE:
            row |= {"status": "kept", "image": image, "width": width, "height": height}
        else:
            row |= {"status": "dropped", "stage": "download", "reason": "http_error"}
        rows.append(row)
    return pa.Table.from_pylist(rows, PARSED)


def count(name: str, counts: Counter[str], items: Sequence[Any]) -> torch.Tensor:
    """Count a batch, and return the same embedding for all items."""
    counts[name] += 1
    return torch.ones(len(items), 8)


def measure(n_rows: int) -> dict[str, float]:
    """Run a shard; return the fill of its batches by model, and the memory of its table."""
    grounder, counts, config = CountingGrounder(), Counter[str](), ScoreConfig()
    scorer = Scorer(
        encode_images=partial(count, "crops and images", counts),
        encode_texts=partial(count, "texts", counts),
        batch_size=config.batch_size,
        padded_length=lambda text: 16 * math.ceil(len(text) / 4 / 16),
    )
    table, ground = make_table(n_rows, seed=n_rows), Ground(GroundConfig(), grounder)
    thresholds = Thresholds(min_side_px=0, size_rule="area", min_score=0.1, min_clip_score=0.1)
    scored = Score(config, thresholds, scorer)(ground(table))
    rows = [row for row in scored.select(["caption", "boxes", "status"]).to_pylist() if row["status"] == "kept"]
    n_crops = sum(len(row["boxes"]) for row in rows)
    fill = {
        "ground": sum(grounder.sizes) / (len(grounder.sizes) * ground.config.batch_size),
        "score": (n_crops + len(rows)) / (counts["crops and images"] * config.batch_size),
    }
    return {name: round(value, 3) for name, value in fill.items()} | {"table_mb": round(table.nbytes / 1e6, 1)}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000], help="rows of a shard")
    options = parser.parse_args()
    results = {n: measure(n) for n in sorted(options.rows)}
    for n, found in results.items():
        print(f"{n:,} rows: " + ", ".join(f"{name} {value:g}" for name, value in found.items()))
    last = results[max(results)]
    ratio = round(min(last["ground"], last["score"]) / AIM, 3)
    print(json.dumps({"name": "batches", "ratio": ratio, "rows": results}))


if __name__ == "__main__":
    main()
