"""Run a study: data, choice of rates and steps, trainings with their evaluations. All parts resume."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import pandas as pd

from demo.paper.data import TASKS, TOWERS, data_settings, features_of, make_data
from demo.paper.heads import evaluate, train
from demo.paper.plan import MAIN, VARIANTS, Size, Variant
from demo.paper.processes import each
from demo.paper.store import has_result, write_result
from demo.train_demo_data import ROOT
from hypergrit_common.errors import UserError
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.version import hypergrit_version
from trainer.config import TrainConfig, as_dict, load_config
from trainer.evaluation.run.runner import as_json, draw_figures
from trainer.evaluation.task import TaskResult, UnsuitableModelError
from trainer.models.hyperbolic import Hyperbolic
from trainer.training.build import Training

JOB: Final = str(ROOT / "jobs/train/heads.yaml")
TOKENIZER: Final = str(ROOT / "demo/weights/clip/merges.txt")  # of text towers that are trained
CLAIMS: Final = Path(__file__).with_name("claims.csv")
CHOSEN_BY: Final = (  # metrics of the validation split whose mean chooses the rate and the step of a row
    ("classification", "scenes/accuracy"),
    ("retrieval", "coco/text_to_image/recall@5"),
    ("retrieval", "coco/image_to_text/recall@5"),
)
PICTURES: Final = ("norms", "order", "factors")  # tasks whose figures the page shows, of the first seed of main rows
WALKS: Final = ("traversal", "interpolation")  # tasks whose walks it shows


@dataclass(frozen=True, kw_only=True)
class Study:
    """The size of a study, the folder of its page and results, and that of all that is needed to make them."""

    size: Size
    out: Path
    data: Path

    def choice(self, variant: Variant) -> Path:
        """The file of the rate and the step of a row: one file each, so that folders of machines can be merged."""
        return self.out / "results" / "tuning" / f"{variant.choice}.json"

    def runs(self, variant: Variant) -> list["Trial"]:
        """The runs of a row at the rate and the step that were chosen; empty without a choice."""
        if not (path := self.choice(variant)).is_file():
            return []
        found, seeds = read_object(path), range(self.size.seeds_of[variant])
        at = (found["step"] * variant.longer,)
        return [Trial(study=self, variant=variant, seed=seed, lr=found["lr"], at=at) for seed in seeds]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The training of a row with a seed at a rate, and its evaluation after each of the steps `at`."""

    study: Study
    variant: Variant
    seed: int
    lr: float
    at: tuple[int, ...]

    @property
    def steps(self) -> int:
        """The number of steps of the schedule."""
        return self.study.size.steps[-1] * self.variant.longer

    @property
    def identity(self) -> dict[str, Any]:
        """All that the result depends on, but for the code."""
        size, row = self.study.size, self.variant
        settings = {"overrides": [*row.overrides, *size.overrides], "seed": self.seed, "lr": self.lr}
        schedule = {"steps": self.steps, "at": self.at}
        return {"row": row.key, "model": row.model, **settings, **schedule} | data_settings(size)

    @property
    def config(self) -> TrainConfig:
        """The configuration of the training."""
        features = features_of(self.study.data, self.variant)
        settings = [JOB, f"model_name={self.variant.model}", *self.study.size.overrides, *self.variant.overrides]
        settings += [
            f"data.features={features}",
            f"tokenizer={TOKENIZER}",
            "output=unused",
            "device=cpu",
            "precision=fp32",
        ]
        settings += [f"steps={self.steps}", f"lr={self.lr}", f"seed={self.seed}", f"data.seed={self.seed}"]
        return load_config(settings)

    @property
    def result(self) -> Path:
        """The file of the result."""
        return self.study.out / "results" / f"{self.variant.key}-{self.seed}.parquet"

    @property
    def is_done(self) -> bool:
        """True if there is a result that was made with the same settings."""
        return has_result(self.result, self.identity)

    @property
    def scores(self) -> Path:
        """The file with the scores on the validation split, by step."""
        digest = hashlib.sha256(json.dumps(self.identity).encode()).hexdigest()[:12]
        return self.study.data / "tuning" / f"{self.variant.key}-{self.lr}-{self.seed}-{digest}.json"

    def train(self) -> Iterator[tuple[int, Training]]:
        """Train the row, and yield the head after each of the steps."""
        return train(self.config, self.at)

    def evaluate(self, head: Training, sets: str, tasks: Sequence[str] = ()) -> dict[str, TaskResult]:
        """The results of tasks on a folder of evaluation sets; without `tasks`, of all that it has."""
        return evaluate(head, TOWERS[self.variant.tower], self.study.data / "sets" / sets, tasks or TASKS[sets])


def run_study(study: Study, n_jobs: int) -> None:
    """Run what is missing. Without a missing result, no data is made.

    Raises RuntimeError if a step fails, and UserError for claims that are not committed.
    """
    if study.size.has_claims:
        check_claims()
    rows = [row for row in study.size.seeds_of if not (runs := study.runs(row)) or not all(run.is_done for run in runs)]
    if rows:
        make_data(study.data, study.size, rows, n_jobs)
        tune(study, rows, n_jobs)
        runs = [run for row in rows for run in study.runs(row) if not run.is_done]
        each(measure, sorted(runs, key=lambda run: run.seed), n_jobs)  # so that the first seeds have all rows


def check_claims() -> None:
    """Raise UserError unless the claims are committed: they are made before the test sets are read."""
    found = subprocess.run(["git", "status", "--porcelain", "--", CLAIMS], cwd=ROOT, capture_output=True, check=False)
    if found.returncode == 0 and found.stdout.strip():
        raise UserError(f"{CLAIMS} is not committed; commit the claims before the test sets are read")


def tune(study: Study, rows: Sequence[Variant], n_jobs: int) -> None:
    """Choose the rate and the step of each row on the validation split. Choices that were made are kept."""
    tuned = {row.choice: row for row in VARIANTS.values() if not row.tuned_as}
    missing = [tuned[name] for name in dict.fromkeys(row.choice for row in rows if not study.choice(row).is_file())]
    runs = [
        Trial(study=study, variant=row, seed=seed, lr=lr, at=study.size.steps)
        for row in missing
        for lr in study.size.rates
        for seed in range(study.size.tuning_seeds)
    ]
    each(validate, [run for run in runs if not run.scores.is_file()], n_jobs)
    entries = [(run, step, score) for run in runs for step, score in read_object(run.scores).items()]
    for row in missing:
        found = pd.Series({(run.lr, int(step), run.seed): score for run, step, score in entries if run.variant == row})
        by_case = found.groupby(level=[0, 1], sort=False)
        rate, step = by_case.mean().idxmax()
        scores = {f"{lr}@{at}": values for (lr, at), values in by_case.agg(list).items()}
        study.choice(row).parent.mkdir(parents=True, exist_ok=True)
        write_object({"lr": rate, "step": int(step), "scores": scores}, study.choice(row))


def validate(run: Trial) -> str:
    """Write the scores of a row on the validation split after each step."""
    scores = {}
    for step, head in run.train():
        found = run.evaluate(head, "validation")
        scores[str(step)] = round(fmean(found[task].metrics[metric] for task, metric in CHOSEN_BY), 5)
    run.scores.parent.mkdir(parents=True, exist_ok=True)
    write_object(scores, run.scores)
    return f"{run.variant.key} at {run.lr}: {scores}"


def measure(run: Trial) -> str:
    """Train a row and write its result. Return what was done."""
    row = run.variant
    if run.is_done:  # by another machine
        return f"{run.result.stem} is finished"
    start = time.monotonic()
    _, head = next(run.train())
    middle = time.monotonic()
    results = {"" if name == "test" else f"{name}/": run.evaluate(head, name) for name in ("test", "unseen", "seen")}
    seconds = {"train": round(middle - start, 2), "evaluate": round(time.monotonic() - middle, 2)}
    if run.seed == 0 and row.key == row.row and row.table == MAIN:
        draw(run, head)
    write_result(run.result, results, facts(run, head) | {"seconds": seconds}, row.table == MAIN)
    return f"{run.result.stem}, {seconds['train']:.0f} + {seconds['evaluate']:.0f} s"


def facts(run: Trial, head: Training) -> dict[str, Any]:
    """The facts about a run that its result stores, with the resolved settings of the training that papers print too."""
    plain, model = as_dict(head.config), head.model
    settings = {"model_name": run.variant.model, "batch_size": plain["batch_size"], "step": run.at[-1]} | {
        "model": {key: value for key, value in plain["model"].items() if key not in ("image", "text")},
        "optim": plain["optim"],
        "data": {key: plain["data"][key] for key in ("boxes", "captions", "texts")},
    }
    curvature = model.curv.exp().flatten().tolist() if isinstance(model, Hyperbolic) else []
    return {
        "identity": run.identity,
        "settings": settings,
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "version": hypergrit_version(),
        "claims": hashlib.sha256(CLAIMS.read_bytes()).hexdigest(),
        "collapsed": bool(head.halted),
        "curvature": [round(value, 4) for value in curvature],
    }


def draw(run: Trial, head: Training) -> None:
    """Write pictures/KEY/TASK.json in the results with the figures beside it, for the page."""
    pictures = run.study.out / "results" / "pictures"
    folder = pictures / run.variant.key
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(run.study.data / "sets" / "test" / "traversal", pictures / "traversal", dirs_exist_ok=True)
    for task in (*PICTURES, *WALKS):
        try:
            result = run.evaluate(head, "test", [task])[task]
        except UnsuitableModelError:
            continue
        figures = draw_figures(result, task, folder) if task in PICTURES else []
        write_object(as_json(result) | {"figures": figures}, folder / f"{task}.json")
