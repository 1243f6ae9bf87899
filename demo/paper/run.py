"""Run a study: data, choice of rates and steps, trainings with their evaluations. All parts resume."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from multiprocessing import active_children, get_context
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TypeVar

import torch

from demo.paper.data import TASKS, data_settings, features_of, make_data, tower_features
from demo.paper.heads import HeadEmbedder, TowerFeatures, Trained, config_of, evaluate, train
from demo.paper.sizes import Size, rows_of
from demo.paper.store import has_result, write_result
from demo.paper.variants import MAIN, VARIANTS, Tower, Variant
from demo.train_demo_data import ROOT
from hypergrit_common.errors import UserError
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.version import hypergrit_version
from trainer.config import as_dict
from trainer.evaluation.catalog import TASKS as CATALOG
from trainer.evaluation.run.runner import as_json, draw_figures
from trainer.evaluation.task import TaskOptions, UnsuitableModelError
from trainer.models.hyperbolic import Hyperbolic

CLAIMS: Final = Path(__file__).with_name("claims.csv")
TUNING: Final = "tuning"
CHOSEN_BY: Final = (
    "classification:scenes/accuracy",
    "retrieval:coco/text_to_image/recall@5",
    "retrieval:coco/image_to_text/recall@5",
)
"""Metrics of the validation split whose mean chooses the rate and the step of a row."""
Case = TypeVar("Case")
PICTURES: Final = ("norms", "order", "factors")
WALKS: Final = ("traversal", "interpolation")
"""Tasks whose figures, and tasks whose walks the page shows, of the first seed of main rows."""


@dataclass(frozen=True, kw_only=True)
class Folders:
    """Folders of a study: `out` has the page and results, `work` all that is needed to make them."""

    out: Path
    work: Path

    @property
    def results(self) -> Path:
        """The files of the results, see `demo.paper.store`."""
        return self.out / "results"

    @property
    def data(self) -> Path:
        """The data, see `demo.paper.data`."""
        return self.work / "data"


@dataclass(frozen=True, kw_only=True)
class Run:
    """The training of a row with a seed at a rate, and its evaluation after each of the steps `at`."""

    variant: Variant
    seed: int
    lr: float
    at: tuple[int, ...]
    size: Size

    @property
    def steps(self) -> int:
        """The number of steps of the schedule."""
        return self.size.steps[-1] * self.variant.longer

    @property
    def identity(self) -> dict[str, Any]:
        """All that the result depends on, but for the code."""
        settings = {"overrides": [*self.variant.overrides, *self.size.overrides], "seed": self.seed, "lr": self.lr}
        schedule = {"steps": self.steps, "at": self.at}
        return {"row": self.variant.key, "model": self.variant.model, **settings, **schedule} | data_settings(self.size)

    @property
    def hash(self) -> str:
        """A name for the identity."""
        return hashlib.sha256(json.dumps(self.identity).encode()).hexdigest()[:12]


def run_study(size: Size, folders: Folders, n_jobs: int, report: Callable[[str], None]) -> None:
    """Run what is missing. Without a missing result, no data is made.

    Raises RuntimeError if a step fails, and UserError for claims that are not committed.
    """
    if size.has_claims:
        check_claims()
    known = choices(folders)
    rows = [row for row in rows_of(size) if not is_complete(row, size, known, folders)]
    if not rows:
        return
    start = time.monotonic()
    make_data(folders.data, size, rows, report)
    report(f"data in {folders.data}, {time.monotonic() - start:.0f} s")
    chosen = tune(rows, size, folders, n_jobs, report)
    runs = [run for seed in range(size.seeds) for run in runs_of(rows, size, chosen, seed) if not is_done(run, folders)]
    each(partial(measure, folders), runs, n_jobs, report)


def is_complete(row: Variant, size: Size, chosen: Mapping[str, Any], folders: Folders) -> bool:
    """True if all seeds of a row have results."""
    return row.choice in chosen and all(
        is_done(run, folders) for seed in range(size.seeds) for run in runs_of([row], size, chosen, seed)
    )


def choices(folders: Folders) -> dict[str, Any]:
    """The rates and steps that were chosen, by TOWER/ROW: one file each, so that folders of machines can be merged."""
    return {f"{p.parent.name}/{p.stem}": read_object(p) for p in (folders.results / TUNING).glob("*/*.json")}


def runs_of(rows: Sequence[Variant], size: Size, chosen: Mapping[str, Any], seed: int) -> Iterator[Run]:
    """Yield the runs of a seed, so that an interrupted study has all rows of the first seeds."""
    for variant in rows:
        if seed < size.seeds_of(variant):
            yield run_of(variant, size, chosen, seed)


def run_of(variant: Variant, size: Size, chosen: Mapping[str, Any], seed: int) -> Run:
    """The run of a row with a seed, at the rate and the step that were chosen."""
    found = chosen[variant.choice]
    return Run(variant=variant, seed=seed, lr=found["lr"], at=(found["step"] * variant.longer,), size=size)


def result_path(run: Run, folders: Folders) -> Path:
    """The file of the result of a run."""
    return folders.results / f"{run.variant.key}-{run.seed}.parquet"


def is_done(run: Run, folders: Folders) -> bool:
    """True if a run has a result that was made with the same settings."""
    return has_result(result_path(run, folders), run.identity)


def each(work: Callable[[Case], str], runs: Sequence[Case], n_jobs: int, report: Callable[[str], None]) -> None:
    """Do the work of each run in processes of one thread."""
    start, before = time.monotonic(), {*active_children()}
    with ProcessPoolExecutor(n_jobs, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            for done, future in enumerate(as_completed([pool.submit(work, run) for run in runs]), 1):
                left = (time.monotonic() - start) / done * (len(runs) - done) / 60
                report(f"{done} of {len(runs)}: {future.result()}; about {left:.0f} min left")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in {*active_children()} - before:  # after an interruption, a run that has no result is repeated
                process.terminate()


@lru_cache
def cached_features(folder: Path, tower: Tower) -> TowerFeatures:
    """The features of the evaluation sets, read once in each process."""
    return tower_features(folder, tower)


def trainings(run: Run, folders: Folders) -> Iterator[Trained]:
    """Train a row, and yield the head after each of its steps."""
    variant = run.variant
    config = config_of(variant, features_of(folders.data, variant), run.seed, run.lr, run.steps, run.size.overrides)
    return train(config, run.at)


def measure(folders: Folders, run: Run) -> str:
    """Train a row and write its result. Return what was done."""
    if is_done(run, folders):  # by another machine
        return f"{run.variant.key}-{run.seed} is finished"
    trained = next(trainings(run, folders))
    start = time.monotonic()
    tower = cached_features(folders.data, run.variant.tower)
    found = {
        name: evaluate(trained, tower, folders.data / "sets" / name, tasks)
        for name, tasks in TASKS.items()
        if name != "validation"
    }
    seconds = {"train": round(trained.seconds, 2), "evaluate": round(time.monotonic() - start, 2)}
    prefixes = {("" if name == "test" else f"{name}/"): results for name, results in found.items()}
    if run.seed == 0 and run.variant.key == run.variant.row and run.variant.table == MAIN:
        draw(trained, tower, folders, run.variant.key)
    write_result(result_path(run, folders), prefixes, facts(run, trained, seconds), run.variant.keeps_items)
    return f"{run.variant.key}-{run.seed}, {seconds['train']:.0f} + {seconds['evaluate']:.0f} s"


def facts(run: Run, trained: Trained, seconds: Mapping[str, float]) -> dict[str, Any]:
    """The facts about a run that its result stores."""
    model = trained.model
    curvature = model.curv.exp().flatten().tolist() if isinstance(model, Hyperbolic) else []
    return {
        "identity": run.identity,
        "settings": settings_of(run, trained),
        "seconds": seconds,
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "version": hypergrit_version(),
        "claims": hashlib.sha256(CLAIMS.read_bytes()).hexdigest(),
        "tower": run.variant.tower,
        "boxes": run.variant.boxes,
        "loss": trained.loss,
        "collapsed": trained.has_collapsed,
        "curvature": [round(value, 4) for value in curvature],
        "temperature": round(1 / float(model.pair_scale().detach()), 5),
    }


def settings_of(run: Run, trained: Trained) -> dict[str, Any]:
    """The resolved settings of the training that papers print too."""
    plain = as_dict(trained.config)
    model = {key: value for key, value in plain["model"].items() if key not in ("image", "text")}
    data = {key: plain["data"][key] for key in ("boxes", "captions", "texts")}
    return {"model_name": run.variant.model, "batch_size": plain["batch_size"], "step": run.at[-1]} | {
        "model": model,
        "optim": plain["optim"],
        "data": data,
    }


def draw(trained: Trained, tower: TowerFeatures, folders: Folders, key: str) -> None:
    """Write pictures/KEY/TASK.json in the results with the figures beside it, for the page."""
    embedder = HeadEmbedder(trained.model, trained.tokenizer, tower)
    sets = folders.data / "sets" / "test"
    pictures = folders.results / "pictures"
    (pictures / key).mkdir(parents=True, exist_ok=True)
    shutil.copytree(sets / "traversal", pictures / "traversal", dirs_exist_ok=True)
    for task in (*PICTURES, *WALKS):
        try:
            result = CATALOG[task].evaluate(embedder, sets, TaskOptions())
        except UnsuitableModelError:
            continue
        figures = draw_figures(result, task, pictures / key) if task in PICTURES else []
        write_object(as_json(result) | {"figures": figures}, pictures / key / f"{task}.json")


def tune(
    rows: Sequence[Variant], size: Size, folders: Folders, n_jobs: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Choose the rate and the step of each row on the validation split. Choices that were made are kept."""
    chosen = choices(folders)
    by_name = {
        f"{variant.tower}/{variant.row}": variant for variant in VARIANTS.values() if variant.boxes == "predicted"
    }
    missing = {name: by_name[name] for name in dict.fromkeys(variant.choice for variant in rows) if name not in chosen}
    cases = list(product(size.rates, range(size.tuning_seeds)))
    runs = {
        name: [Run(variant=variant, seed=seed, lr=lr, at=size.steps, size=size) for lr, seed in cases]
        for name, variant in missing.items()
    }
    left = [run for found in runs.values() for run in found if not validated(run, folders).is_file()]
    each(partial(validate, folders), left, n_jobs, report)
    for name, found in runs.items():
        scores: dict[str, list[float]] = defaultdict(list)
        for run in found:
            for step, score in read_object(validated(run, folders)).items():
                scores[f"{run.lr}@{step}"].append(score)
        best = max(scores, key=lambda case: fmean(scores[case]))
        rate, _, step = best.partition("@")
        chosen[name] = {"lr": float(rate), "step": int(step), "scores": scores}
        path = folders.results / TUNING / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_object(chosen[name], path)
    return chosen


def validated(run: Run, folders: Folders) -> Path:
    """The file with the scores of a run on the validation split, by step."""
    return folders.work / "tuning" / f"{run.variant.key}-{run.lr}-{run.seed}-{run.hash}.json"


def validate(folders: Folders, run: Run) -> str:
    """Write the scores of a row on the validation split after each step."""
    scores = {}
    tower = cached_features(folders.data, run.variant.tower)
    for trained in trainings(run, folders):
        found = evaluate(trained, tower, folders.data / "sets" / "validation", TASKS["validation"])
        values = [found[task].metrics[metric] for task, _, metric in (name.partition(":") for name in CHOSEN_BY)]
        scores[str(trained.step)] = round(fmean(values), 5)
    path = validated(run, folders)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_object(scores, path)
    return f"{run.variant.key} at {run.lr}: {scores}"


def check_claims() -> None:
    """Raise UserError unless the claims are committed: they are made before the test sets are read."""
    command = ["git", "status", "--porcelain", "--", str(CLAIMS)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode == 0 and found.stdout.strip():
        raise UserError(f"{CLAIMS} is not committed; commit the claims before the test sets are read")
