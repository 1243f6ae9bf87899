"""A job whose images come from a web server, with stages that find one box in every image, without models."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.config import PipelineConfig
from pipeline.faults.stage import Stage
from pipeline.job import run
from pipeline.read.types import ShardPlan
from pipeline.retry.__main__ import main
from pipeline.run import Done, Steps
from schemas.manifest import FailedShard
from schemas.rows import BOUNDARIES
from schemas.table import add_columns, kept_indices
from tests.pipeline.download.server import TinyWeb
from tests.pipeline.resume.jobs import configure

ROWS = (
    ("image/1", "one"),
    ("flaky/a", "two"),  # fails twice
    ("status/404", "three"),
    ("wait/0", "four"),  # 429 once
    ("image/2", "five"),
    ("image/4", "six"),
    ("status/410", "seven"),
    ("image/5", "eight"),
    ("flaky/b", "nine"),
    ("size/60x80", "the same"),  # the image of the next row
    ("wait/1", "the same"),
    ("status/503", "twelve"),  # fails always
)
"""Path of the URL and caption of each input row; shards of four."""
FOUND: dict[str, dict[str, Any]] = {
    "captions": {"caption": "a cat"},
    "parse": {
        "tokens": [],
        "noun_chunks": [{"start": 0, "end": 5, "root": -1, "removed": None}],
        "ref_exps": [],
        "given_chunks": [],
    },
    "ground": {"boxes": [{"phrase": 0, "x_min": 0.1, "y_min": 0.1, "x_max": 0.9, "y_max": 0.9, "score": 0.9}]},
    "score": {"box_scores": [{"area_px": 2000.0, "clip_cosine": 0.3, "removed": None}], "clip_similarity": 0.25},
}
load_stage = Steps.make_stage


def make_stage(self: Steps, name: str) -> Stage:
    """Load `download`; the other stages give every row the same box."""
    return load_stage(self, name) if name == "download" else partial(find_box, name)


def find_box(stage: str, table: Any) -> Any:
    """Add the columns of a stage."""
    return add_columns(table, BOUNDARIES[stage], dict.fromkeys(kept_indices(table), FOUND[stage]))


def compute_here(
    plans: Sequence[ShardPlan], _: PipelineConfig, make_steps: Callable[[], Steps]
) -> Iterator[Done | FailedShard]:
    """Compute the shards in this process."""
    steps = make_steps()
    for plan in plans:
        yield steps.write(plan, *steps.infer(plan, *steps.prepare(plan)))
    if "download" in steps._stages:
        steps.stage("download").__self__.close()  # type: ignore[attr-defined]


def job(web: TinyWeb, folder: Path, output: Path | str, *settings: str) -> PipelineConfig:
    """The job on ROWS."""
    lines = [json.dumps({"url": web.url(f"/{path}"), "caption": caption}) for path, caption in ROWS]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return configure(
        folder / "rows.jsonl", output, "rows_per_shard=4", "ray.runner=local", "download.retries=0", "report.trees=0",
        "download.allowed_private_hosts=[127.0.0.1]", *settings,
    )  # fmt: skip


def run_job(web: TinyWeb, folder: Path, output: Path | str, *settings: str) -> int:
    """Run the job; return the number of failures."""
    return run(job(web, folder, output, *settings))


def retry(output: Path | str, *arguments: str) -> int:
    """Run the command in this process; return its exit code."""
    return main([str(output), "ray.runner=local", "ray.cpu_workers=1", *arguments])
