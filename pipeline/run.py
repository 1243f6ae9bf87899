"""The order of the stages, and the three steps that compute one shard.

    Prepare: read -> download -> captions -> parse     CPU, waits for the network
    Infer:   ground -> score                           models
    write:   write                                     CPU

This module does not use Ray; on_ray.py runs the same three steps on a cluster.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

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
from pipeline.score.thresholds import resolve_thresholds
from pipeline.stored_images import StoredImages
from pipeline.write.stage import write_shard
from pipeline.write.store import Store
from schemas.files import TIMINGS_FILE
from schemas.manifest import Manifest, Provenance, Timings
from schemas.rows import BOUNDARIES
from schemas.table import kept_indices

Stage = Callable[[pa.Table], pa.Table]


class Prepare:
    """The CPU step: read, download and parse the rows of a shard."""

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
        timings: Timings = {"read": {"seconds": time.perf_counter() - start, "rows": float(table.num_rows)}}
        return run_stages(self.stages, table, timings, plan)


class Infer:
    """The model step: boxes for the phrases, scores for the boxes.

    On a CPU it uses one thread, since the last bits of sums depend on the number of threads. To use more cores, raise
    the number of workers.
    """

    def __init__(self, config: PipelineConfig) -> None:
        torch.set_num_threads(1)
        self.images = StoredImages()
        thresholds = resolve_thresholds(config.score, config.ground.grounder)
        self.stages: list[tuple[str, Stage]] = [
            ("ground", Ground(config.ground, decode=self.images)),
            ("score", Score(config.score, thresholds, decode=self.images)),
        ]

    def __call__(self, plan: ShardPlan, table: pa.Table, timings: Timings) -> tuple[pa.Table, Timings]:
        try:
            return run_stages(self.stages, table, dict(timings), plan)
        finally:
            self.images.clear()


def run_stages(
    stages: Sequence[tuple[str, Stage]], table: pa.Table, timings: Timings, plan: ShardPlan
) -> tuple[pa.Table, Timings]:
    """Apply `stages` to a table one after the other; add the time of each to `timings`.

    Raises RuntimeError if a stage changes the number of rows or does not return its schema, which is a bug. A note with
    the stage and the rows is added to exceptions of a stage.
    """
    for name, stage in stages:
        n_kept, n_rows, start = len(kept_indices(table)), table.num_rows, time.perf_counter()
        try:
            table = stage(table)
        except Exception as error:
            last_row = plan.first_row + plan.n_rows - 1
            error.add_note(f"in stage {name!r}, shard {plan.index} (rows {plan.first_row} to {last_row})")
            raise
        if table.num_rows != n_rows:
            raise RuntimeError(f"stage {name!r} received {n_rows} rows and returned {table.num_rows}")
        if not table.schema.equals(BOUNDARIES[name]):
            raise RuntimeError(f"stage {name!r} returned columns that differ from its schema: {table.schema.names}")
        timings[name] = {"seconds": time.perf_counter() - start, "rows": float(n_kept)}
    return table, timings


def write(
    plan: ShardPlan, table: pa.Table, timings: Timings, config: PipelineConfig, provenance: Provenance
) -> Manifest:
    """Write and commit a shard; return its manifest.

    The timings are in a separate file because they differ from run to run. Raises UserError if the output cannot be
    written.
    """
    start, n_kept = time.perf_counter(), len(kept_indices(table))
    manifest = write_shard(table, plan, config.write, config.output, provenance, runtime_settings(config))
    timings = {**timings, "write": {"seconds": time.perf_counter() - start, "rows": float(n_kept)}}
    Store(config.output).write(TIMINGS_FILE.format(plan.index), json.dumps(timings, sort_keys=True))
    return manifest


def run_local(plans: Sequence[ShardPlan], config: PipelineConfig, provenance: Provenance) -> Iterator[Manifest]:
    """Compute the shards one after the other in this process; yield each manifest once it is committed.

    `provenance` is `make_provenance(config)`.

    >>> import csv, tempfile
    >>> from pathlib import Path
    >>> from pipeline import load_config, make_provenance, plan_shards, run_local
    >>> folder = Path(tempfile.mkdtemp())
    >>> rows = [("url", "caption"), ("ftp://example.org/a.jpg", "a cat"), ("", "a dog")]
    >>> with (folder / "pairs.csv").open("w", newline="") as file:
    ...     csv.writer(file).writerows(rows)
    >>> config = load_config([f"input={folder / 'pairs.csv'}", f"output={folder / 'out'}"])
    >>> plans = plan_shards(config.input, config.rows_per_shard, config.limit, config.read)
    >>> [manifest["counts"] for manifest in run_local(plans, config, make_provenance(config))]
    [{'read': 2, 'kept': 0, 'dropped': {'download': {'invalid_url': 1}, 'read': {'missing_url': 1}}}]
    """
    prepare, infer = Prepare(config), Infer(config)
    for plan in plans:
        yield write(plan, *infer(plan, *prepare(plan)), config, provenance)
