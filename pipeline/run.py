"""The order of the stages, and one shard's way through them. A reader learns the pipeline from this file.

    read -> download -> captions -> parse  |  ground -> score  |  write
              CPU, waits for the network   |  models            |  CPU

Nothing here knows Ray; on_ray.py takes the same three steps and gives each its resources.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import torch

from pipeline.captions.stage import clean_captions
from pipeline.config import PipelineConfig, runtime_settings
from pipeline.download.stage import Download
from pipeline.ground.stage import Ground
from pipeline.parse.stage import Parse
from pipeline.read.stage import read_shard
from pipeline.read.types import ShardPlan
from pipeline.score.stage import Score
from pipeline.stored_images import StoredImages
from pipeline.write.stage import write_shard
from pipeline.write.store import Store
from schemas.files import TIMINGS_FILE
from schemas.rows import BOUNDARIES
from schemas.table import kept_indices

Stage = Callable[[pa.Table], pa.Table]
Timings = dict[str, dict[str, float]]
"""Stage -> {"seconds": wall time the stage took, "rows": rows that came to it undropped}."""


class Prepare:
    """The CPU half: a plan becomes a table of parsed rows."""

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self.stages: list[tuple[str, Stage]] = [
            ("download", Download(config.download)),
            ("captions", partial(clean_captions, config=config.captions)),
            ("parse", Parse(config.parse)),
        ]

    def __call__(self, plan: ShardPlan) -> tuple[pa.Table, Timings]:
        start = time.perf_counter()
        table = read_shard(plan, self.config.read)
        timings = {"read": {"seconds": time.perf_counter() - start, "rows": float(table.num_rows)}}
        return run_stages(self.stages, table, timings, plan)


class Infer:
    """The model half: boxes for the phrases, scores for the boxes.

    On a CPU at one thread, since sums differ in their last bits with the number of threads: more workers make it faster.
    """

    def __init__(self, config: PipelineConfig) -> None:
        torch.set_num_threads(1)
        self.images = StoredImages()
        self.stages: list[tuple[str, Stage]] = [
            ("ground", Ground(config.ground, decode=self.images)),
            ("score", Score(config.score, config.ground.grounder, decode=self.images)),
        ]

    def __call__(self, plan: ShardPlan, table: pa.Table, timings: Timings) -> tuple[pa.Table, Timings]:
        try:
            return run_stages(self.stages, table, dict(timings), plan)
        finally:
            self.images.clear()


def run_stages(
    stages: Sequence[tuple[str, Stage]], table: pa.Table, timings: Timings, plan: ShardPlan
) -> tuple[pa.Table, Timings]:
    """`table` through `stages`, each held to its schema and to handing on every row.

    Raises RuntimeError when a stage loses a row or breaks its schema: a bug, never data.
    """
    for name, stage in stages:
        kept, n, start = len(kept_indices(table)), table.num_rows, time.perf_counter()
        try:
            table = stage(table)
        except Exception as error:
            error.add_note(
                f"in stage {name!r}, shard {plan.index} (rows {plan.first_row} to {plan.first_row + plan.n_rows - 1})"
            )
            raise
        if table.num_rows != n:
            raise RuntimeError(f"stage {name!r} got {n} rows and handed on {table.num_rows}")
        if not table.schema.equals(BOUNDARIES[name]):
            raise RuntimeError(f"stage {name!r} handed on columns that are not its schema's: {table.schema.names}")
        timings[name] = {"seconds": time.perf_counter() - start, "rows": float(kept)}
    return table, timings


def write(
    plan: ShardPlan, table: pa.Table, timings: Timings, config: PipelineConfig, provenance: dict[str, Any]
) -> dict[str, Any]:
    """Commit the shard and return its manifest; timings go to a file of their own, since they differ from run to run."""
    start, kept = time.perf_counter(), len(kept_indices(table))
    manifest = write_shard(table, plan, config.write, config.output, provenance, runtime_settings(config))
    timings = {**timings, "write": {"seconds": time.perf_counter() - start, "rows": float(kept)}}
    Store(config.output).write(TIMINGS_FILE.format(plan.index), json.dumps(timings, sort_keys=True))
    return manifest


def run_local(
    plans: Sequence[ShardPlan], config: PipelineConfig, provenance: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """All shards in a for loop in this process; yields each manifest once it is committed."""
    prepare, infer = Prepare(config), Infer(config)
    for plan in plans:
        yield write(plan, *infer(plan, *prepare(plan)), config, provenance)
