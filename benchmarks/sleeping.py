"""The work of benchmarks.busy: real tables and stages, and networks that sleep. CPU workers import no torch."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pyarrow as pa
import ray

from pipeline.config import PipelineConfig
from pipeline.faults.stage import Stage
from pipeline.read.types import ShardPlan
from pipeline.run import Done, Notes, Steps
from schemas.rows import PARSED

if TYPE_CHECKING:
    from common.images import Image
    from pipeline.ground.grounder import Grounded, Span

GPUS, CPUS, ROWS, IMAGE_BYTES, SPARE = 2, 8, 250, 50_000, 1.3
CAPTION = "a photo of a dog beside a red car"
CHUNKS = [{"start": 11, "end": 16, "root": 0}, {"start": 24, "end": 33, "root": 0}]


@dataclass(frozen=True)
class SleepingGrounder:
    """A grounder that sleeps for a full batch, and writes when. Its buckets are those of GLIP at 800 pixels."""

    seconds: float
    log: str

    def bucket(self, height: int, width: int) -> tuple[int, int]:
        """Return the padded size of an image."""
        from pipeline.ground.glip.config import DetectConfig
        from pipeline.ground.glip.images import network_size, padded_size

        return padded_size(network_size(height, width, DetectConfig()))

    def prepare(self, images: "Sequence[Image]", captions: Sequence[str], spans: "Sequence[Sequence[Span]]") -> int:
        """Return the number of images."""
        return len(images)

    def forward(self, n: int) -> int:
        """Sleep."""
        start = time.time()
        time.sleep(self.seconds)
        with Path(f"{self.log}.{ray.get_runtime_context().get_worker_id()}").open("a") as file:
            file.write(f"{start} {time.time()} {n}\n")
        return n

    def collect(self, n: int) -> "list[Grounded]":
        """Return two boxes for each image."""
        from pipeline.ground.grounder import Detection, Grounded

        boxes = [Detection(0, (0.0, 0.0, 0.5, 0.9), 0.9), Detection(1, (0.5, 0.0, 1.0, 0.9), 0.8)]
        return [Grounded(boxes=boxes) for _ in range(n)]


class SleepingSteps(Steps):
    """Steps that sleep; the tables and the stages of the models are real."""

    def __init__(self, config: PipelineConfig, rate: float, log: str) -> None:
        super().__init__(config, {})  # type: ignore[typeddict-item]
        self.rate, self.log = rate, log
        self.has_warned = True

    def make_stage(self, name: str) -> Stage:
        """Return the stage with a network that sleeps, or answers at once."""
        from pipeline.ground.stage import Ground
        from pipeline.score.scorers import Scorer
        from pipeline.score.stage import Score
        from pipeline.score.thresholds import Thresholds

        if name == "ground":
            seconds = self.config.ground.batch_size / self.rate
            return Ground(self.config.ground, SleepingGrounder(seconds, self.log))
        one = partial(fixed, 8)
        scorer = Scorer(encode_images=one, encode_texts=one, batch_size=self.config.score.batch_size)
        return Score(
            self.config.score, Thresholds(min_side_px=8, size_rule="area", min_score=0.1, min_clip_score=0.1), scorer
        )

    def prepare(self, plan: ShardPlan, *state: Any) -> tuple[pa.Table, Notes]:
        """Sleep, and return a shard."""
        start = time.time()
        table = make_table(plan)
        time.sleep(max(0.0, CPUS / GPUS / SPARE * plan.n_rows / self.rate - (time.time() - start)))
        return table, Notes({})

    def write(self, plan: ShardPlan, table: pa.Table, notes: Notes) -> Done:
        """Check the shard."""
        assert table.num_rows == plan.n_rows == sum(image.is_valid for image in table["image"])
        return Done({"shard": plan.index}, ())  # type: ignore[typeddict-item]


def fixed(size: int, items: Sequence[Any]) -> Any:
    """Return the same embedding for all items."""
    import torch

    return torch.ones(len(items), size)


def make_table(plan: ShardPlan) -> pa.Table:
    """Return a PARSED table with images whose aspect ratios are as spread as on the web, 256 pixels wide or high."""
    rng, rows = Random(plan.index), []
    jpeg = cv2.imencode(".jpg", np.zeros((16, 16, 3), np.uint8))[1].tobytes()
    n = IMAGE_BYTES - len(jpeg) - 4
    image = jpeg[:2] + b"\xff\xfe" + (n + 2).to_bytes(2, "big") + rng.randbytes(n) + jpeg[2:]  # a comment fills it up
    for i in range(plan.n_rows):
        ratio = min(max(math.exp(rng.gauss(0.2, 0.35)), 0.33), 3.0)
        width, height = (round(256 * ratio), 256) if ratio > 1 else (256, round(256 / ratio))
        rows.append(
            {"key": f"{plan.first_row + i:012d}", "source": "made", "source_row": i, "status": "kept"}
            | {"caption": CAPTION, "noun_chunks": CHUNKS, "image": image, "width": width, "height": height}
        )
    return pa.Table.from_pylist(rows, PARSED)
