"""Jobs without models: every row that is read becomes a dropped row, so that the shards depend on the input."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from fsspec import AbstractFileSystem

from pipeline.config import PipelineConfig, RayConfig, content_hash, load_config
from pipeline.output.resume import Work, plan_work
from pipeline.output.store import Store
from pipeline.output.write.stage import write_shard
from pipeline.read.listing import list_files
from pipeline.read.source import read_shard
from pipeline.read.types import ShardPlan
from pipeline.run.provenance import with_absolute_paths
from pipeline.run.steps import Done
from schemas.files import FILES, INDEX_FOLDER, MANIFEST_FOLDER
from schemas.manifest import Manifest, Provenance
from schemas.rows import SCORED, VERSION
from tests.pipeline.here import compute_here

ROWS_PER_SHARD = 3


def provenance_of(config: PipelineConfig, **packages: str) -> Provenance:
    return {
        "hypergrit": "1.0",
        "schema": VERSION,
        "config_hash": content_hash(config),
        "packages": {"torch": "2.0", **packages},
        "models": {
            "parser": {"name": "spacy", "version": "3"},
            "grounder": {"name": "miniature", "sha256": "a" * 64},
            "scorer": {"name": "miniature", "sha256": "b" * 64},
        },
        "thresholds": {"min_side_px": 32, "size_rule": "area", "min_score": 0.5, "min_clip_score": 0.5},
    }


def configure(folder: Path | str, output: Path | str, *arguments: str) -> PipelineConfig:
    values = [f"input={folder}", f"output={output}", f"rows_per_shard={ROWS_PER_SHARD}", *arguments]
    return with_absolute_paths(load_config(values))


def plan(config: PipelineConfig, provenance: Provenance | None = None) -> Work:
    """Plan the job without writing anything."""
    return plan_work(config, list_files(config.input), provenance or provenance_of(config), Store(config.output))


def compute(shard: ShardPlan, config: PipelineConfig, provenance: Provenance) -> Manifest:
    rows: list[dict[str, Any]] = [
        dict.fromkeys(SCORED.names)
        | {name: row[name] for name in ("key", "source", "source_row", "url", "caption_original")}
        | {"status": "dropped", "stage": "download", "reason": "http_error", "detail": "404"}
        for row in read_shard(shard, config.read).to_pylist()
    ]
    return write_shard(pa.Table.from_pylist(rows, schema=SCORED), shard, config.write, config.output, provenance)


def compute_all(plans: Sequence[Any], config: RayConfig, recipe: Any) -> Iterator[Any]:
    """The runner of the job, without models, and of what is done with finished shards."""
    if recipe.job is None:
        yield from compute_here(plans, config, recipe)
        return
    for shard in plans:
        yield Done(compute(shard, *recipe.make.args), ())


def run(config: PipelineConfig, provenance: Provenance | None = None, only: Sequence[int] | None = None) -> list[int]:
    """Run the job, or only the shards with these indices; return the indices of the shards that were computed."""
    provenance = provenance or provenance_of(config)
    work = plan(config, provenance)
    work.begin(Store(config.output))
    chosen = [shard for shard in work.unfinished if only is None or shard.index in only]
    for shard in chosen:
        compute(shard, config, provenance)
    return [shard.index for shard in chosen]


def overwriting(config: PipelineConfig) -> PipelineConfig:
    return dataclasses.replace(config, overwrite=True)


def digests_of(fs: AbstractFileSystem, output: str) -> dict[str, str]:
    """SHA-256 of the shards and manifests of an output in a store."""
    paths = [path for path in fs.find(output) if path.split("/")[-2] in (*FILES, INDEX_FOLDER, MANIFEST_FOLDER)]
    return {path: hashlib.sha256(fs.cat_file(path)).hexdigest() for path in paths}


def write_rows(path: Path, name: str, n: int) -> Path:
    """Write a JSONL file of `n` rows with captions of the same length."""
    lines = [f'{{"url": "http://example.org/{name}/{i}.jpg", "caption": "a {name} {i}"}}\n' for i in range(n)]
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(lines))
    return path
