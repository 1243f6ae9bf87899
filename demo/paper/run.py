"""Run a study: data, trainings and evaluations, then the page. All parts resume."""

import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from demo.paper.page import Study, write_pictures, write_study
from demo.paper.plan import Run, chosen, plan, steps_of
from demo.paper.results import Row, claims, judge, read_row
from demo.paper.sets import data_settings, make_data
from demo.paper.sizes import Size
from demo.paper.steps import Slots, Step, run_steps, seconds_of
from demo.paper.store import missing_results, write_result
from demo.paper.tables import DESIGNS, build_table
from hypergrit_common.version import hypergrit_version

LOADER_CPUS: Final = 8
"""CPUs of a training on a GPU, for its loader."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """CPUs and GPUs that the study may use."""

    n_cpus: int
    n_gpus: int

    def slots(self, n_jobs: int | None = None) -> Slots:
        """Steps side by side: one per CPU, or one per GPU that has CPUs to load its data; `n_jobs` overrides it."""
        if self.n_gpus:
            return Slots(n_steps=n_jobs or min(self.n_gpus, max(1, self.n_cpus // 2)), n_gpus=self.n_gpus)
        return Slots(n_steps=n_jobs or self.n_cpus)

    def loader_workers(self, slots: Slots) -> int:
        """Loader processes of a training: none on a CPU, where they would take the time of another training."""
        return min(LOADER_CPUS, max(1, self.n_cpus // slots.n_steps - 1)) if self.n_gpus else 0


@dataclass(frozen=True, kw_only=True)
class Folders:
    """Folders of a study: `out` has the page and results, `work` all that is needed to make them."""

    out: Path
    work: Path

    @property
    def results(self) -> Path:
        """The files of the results, see `demo.paper.store`."""
        return self.out / "results"


def this_machine() -> Machine:
    """The CPUs of this process and the visible GPUs."""
    import torch

    return Machine(n_cpus=len(os.sched_getaffinity(0)), n_gpus=torch.cuda.device_count())


def run_study(
    name: str, size: Size, folders: Folders, slots: Slots, workers: int, report: Callable[[str], None]
) -> Path:
    """Run what is missing and write the page. Return its path.

    Raises RuntimeError if a step fails, and UserError for results that cannot be read.
    """
    runs = plan(folders.work, folders.results, size, data_settings(size), workers)
    missing = missing_results(runs)
    report(f"{len(runs) - len(missing)} of {len(runs)} results are in {folders.results}")
    if missing:
        make(missing, size, folders, slots, report)
    report("statistics")
    rows = {variant.key: read_row(folders.results, variant, size.seeds) for variant in chosen(size)}
    study = Study(
        name=name,
        size=size,
        rows=rows,
        tables=[build_table(design, rows, size.replicates if size.has_claims else 0) for design in DESIGNS],
        judgements=[judge(claim, rows, size.replicates) for claim in claims()] if size.has_claims else [],
        facts=facts(rows),
    )
    write_study(study, folders.out)
    return folders.out / "index.html"


def make(runs: list[Run], size: Size, folders: Folders, slots: Slots, report: Callable[[str], None]) -> None:
    """Make the results of runs. Each is written as soon as its evaluation is finished."""
    start = time.monotonic()
    make_data(folders.work / "data", size)
    report(f"data in {folders.work / 'data'}, {time.monotonic() - start:.0f} s")
    by_step = {run.evaluation.name: run for run in runs}

    def keep(step: Step) -> None:
        if step.name in by_step:
            keep_result(by_step[step.name], folders)

    for run in runs:  # an earlier command ended between the evaluation and its result
        if seconds_of(folders.work, run.evaluation) is not None:
            keep_result(run, folders)
    run_steps(folders.work, steps_of(missing_results(runs)), slots, report, keep)


def keep_result(run: Run, folders: Folders) -> None:
    """Write the result of an evaluated run, and the pictures of a model of the first seed."""
    times = {step.kind.split()[0]: seconds_of(folders.work, step) for step in (run.training, run.evaluation)}
    if run.seed == 0 and not run.variant.is_ablation:
        write_pictures(run, folders.work / "data" / "sets")
    write_result(run, {"seconds": times, "machine": machine_name(), "version": hypergrit_version()})


def machine_name() -> str:
    """Architecture and number of CPUs of this machine, and its GPUs."""
    import torch

    gpus = sorted({torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())})
    return ", ".join([f"{platform.machine()}, {os.cpu_count()} CPUs", *gpus])


def facts(rows: Mapping[str, Row]) -> dict[str, Any]:
    """Command, and the machines, versions and times of all results."""
    made = [result.facts for row in rows.values() for result in row.results]
    minutes = {kind: sum(found["seconds"][kind] or 0 for found in made) / 60 for kind in ("train", "evaluate")}
    return {
        "command": shlex.join([Path(sys.executable).name, "-m", "demo.paper", *sys.argv[1:]]),
        "machines": "; ".join(sorted({found["machine"] for found in made})),
        "versions": "HyperGRIT " + ", ".join(sorted({found["version"] for found in made})),
        "trainings": f"{len(made)}, {minutes['train']:.0f} min in total, each with one thread",
        "evaluations": f"{minutes['evaluate']:.0f} min in total",
    }
