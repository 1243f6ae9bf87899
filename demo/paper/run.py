"""Run a study: data, trainings and evaluations, then the page. All parts resume."""

import os
import platform
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from common.version import hypergrit_version
from demo.paper.claims import claims
from demo.paper.data import make_data
from demo.paper.page import Study, write_study
from demo.paper.plan import chosen, plan
from demo.paper.results import judge, read_row
from demo.paper.sizes import Size
from demo.paper.steps import Slots, Step, run_steps, seconds_of
from demo.paper.tables import DESIGNS, build_table

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


def this_machine() -> Machine:
    """The CPUs of this process and the visible GPUs."""
    import torch

    return Machine(n_cpus=len(os.sched_getaffinity(0)), n_gpus=torch.cuda.device_count())


def run_study(name: str, size: Size, folder: Path, slots: Slots, workers: int, report: Callable[[str], None]) -> Path:
    """Run what is missing and write the page. Return its path.

    Raises RuntimeError if a step fails, and UserError for results that cannot be read.
    """
    start = time.monotonic()
    data = make_data(folder / "data", size)
    report(f"data in {folder / 'data'}, {time.monotonic() - start:.0f} s")
    steps = plan(folder, size, data, workers)
    run_steps(folder, steps, slots, report)
    report("statistics")
    rows = {variant.key: read_row(folder, variant, size.seeds) for variant in chosen(size)}
    study = Study(
        name=name,
        size=size,
        rows=rows,
        tables=[build_table(design, rows, size.replicates if size.has_claims else 0) for design in DESIGNS],
        judgements=[judge(claim, rows, size.replicates) for claim in claims()] if size.has_claims else [],
        facts=facts(folder, steps, slots),
    )
    write_study(study, folder)
    return folder / "index.html"


def facts(folder: Path, steps: list[Step], slots: Slots) -> dict[str, Any]:
    """Command, machine, versions, and the time of the steps added over all of them."""
    seconds = {step.name: seconds_of(folder, step) or 0.0 for step in steps}
    by_kind = {kind: sum(seconds[step.name] for step in steps if step.kind == kind) for kind in ("train", "evaluate")}
    return {
        "command": shlex.join([Path(sys.executable).name, "-m", "demo.paper", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {slots.n_gpus} GPUs",
        "side by side": f"{slots.n_steps} steps with {slots.threads} thread",
        "versions": f"HyperGRIT {hypergrit_version()}, Python {platform.python_version()}",
        "trainings": f"{sum(step.kind == 'train' for step in steps)}, {by_kind['train'] / 60:.0f} min in total",
        "evaluations": f"{by_kind['evaluate'] / 60:.0f} min in total",
    }
