"""A job whose images come from a web server, with stages that find one box in every image but one, without models."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import PipelineConfig
from pipeline.grit import main
from pipeline.output.store import Store
from pipeline.run import job as main_job
from pipeline.run.steps import Steps
from pipeline.stages.order import SCHEMAS
from pipeline.stages.stage import TableFunction
from schemas.table import Drop, add_columns, drop_rows, kept_indices
from tests.patience import PATIENCE_S
from tests.pipeline.output.resume.jobs import configure
from tests.pipeline.stages.download.server import TinyWeb

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
PATIENT = ("download.retries=0", f"download.timeout_s={PATIENCE_S}", f"download.deadline_s={PATIENCE_S}")
"""Settings that decide no content, and which a command on a finished output therefore does not take from it."""
DROPPED = "one"
"""Caption of the row that a model drops."""
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
LOW: dict[str, dict[str, Any]] = {
    "ground": {"boxes": [{**FOUND["ground"]["boxes"][0], "score": 0.2}]},
    "score": {"box_scores": [{"area_px": 2000.0, "clip_cosine": None, "removed": "low_score"}]},
}
load_stage = Steps.make_stage


def make_stage(self: Steps, name: str) -> TableFunction:
    """Load `download`; the other stages give every row the same box."""
    return load_stage(self, name) if name == "download" else partial(find_box, name)


def find_box(stage: str, table: Any) -> Any:
    """Add the columns of a stage; the last one drops the row DROPPED, which must have its image until then."""
    kept = kept_indices(table)
    lost = [i for i in kept if table["caption_original"][i].as_py() == DROPPED and stage in LOW]
    found = dict.fromkeys(kept, FOUND[stage]) | dict.fromkeys(lost, LOW.get(stage, {}))
    assert stage in ("captions", "parse") or all(table["image"][i].is_valid for i in kept)
    table = add_columns(table, SCHEMAS[stage], found)
    return drop_rows(table, stage, dict.fromkeys(lost, Drop("low_score", "best 0.2"))) if stage == "score" else table


def job(web: TinyWeb, folder: Path, output: Path | str, *settings: str) -> PipelineConfig:
    """The job on ROWS."""
    lines = [json.dumps({"url": web.url(f"/{path}"), "caption": caption}) for path, caption in ROWS]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return configure(
        folder / "rows.jsonl", output, "rows_per_shard=4", "ray.runner=local", *PATIENT,
        "download.allowed_private_hosts=[127.0.0.1]", *settings,
    )  # fmt: skip


def run_job(web: TinyWeb, folder: Path, output: Path | str, *settings: str) -> int:
    """Run the job; return the number of failures."""
    return main_job.run_job(job(web, folder, output, *settings)).n_failures


def retry(output: Path | str, *arguments: str) -> int:
    """Run the command in this process, with trust in what the job named; return its exit code."""
    job = yaml.safe_load(Store(str(output)).read("config.yaml") or b"")
    trust = f'trust=["{job["input"]}", 127.0.0.1]'
    return main(
        ["retry=true", f"output={output}", "ray.runner=local", "ray.cpu_workers=1", *PATIENT, trust, *arguments]
    )
