"""Steps in which chosen rows make a stage raise, crash, hang or run out of memory."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from hypergrit_common.errors import UserError
from pipeline.config import PipelineConfig
from pipeline.read.source import planned_rows
from pipeline.read.types import ShardPlan
from pipeline.run.steps import Part, Steps
from pipeline.stages.order import SCHEMAS
from pipeline.stages.stage import TableFunction
from schemas.manifest import Manifest, Provenance
from schemas.table import add_columns, kept_indices


class RustPanic(BaseException):
    """The exception of a panic in a Rust extension."""


@dataclass(frozen=True)
class Poison:
    """A row that makes a stage fail in this way; with `once`, a file, only until that file exists.

    Of the kind "slow", every row takes time; of the kind "held", this row and those after it wait for the file `once`. In
    the folder `hanging`, a process that hangs leaves a file with its number as name.
    """

    stage: str
    row: int
    kind: str
    once: str = ""
    hanging: str = ""

    def apply(self, stage: str, table: pa.Table) -> None:
        """Fail if the table holds the row and the stage has not dropped it."""
        keys = table["key"].to_pylist()
        if self.kind == "slow":  # every row
            time.sleep(0.2 * (stage == self.stage))
            return
        if self.kind == "held":
            while stage == self.stage and max(keys) >= f"{self.row:012d}" and not Path(self.once).exists():
                time.sleep(0.02)
            return
        if stage != self.stage or f"{self.row:012d}" not in {keys[i] for i in kept_indices(table)}:
            return
        if self.once and Path(self.once).exists():
            return
        if self.once:
            Path(self.once).touch()
        if self.kind == "hang" and self.hanging:
            (Path(self.hanging) / str(os.getpid())).touch()
        fail(self.kind)


def fail(kind: str) -> None:
    """Raise, crash, hang or use up the memory."""
    match kind:
        case "raise":
            raise ZeroDivisionError("a \x1b[31mbad\nrow")
        case "panic":
            raise RustPanic("index out of bounds")
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "kill":  # as the kernel does when memory is exhausted
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(1000)
        case "memory":  # more than any machine has
            bytearray(1 << 46)
        case "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "user":
            raise UserError("disk full")
        case "disk":
            raise OSError(5, "Input/output error")


class PoisonedSteps(Steps):
    """The steps of a job with poisoned rows."""

    def __init__(
        self, config: PipelineConfig, provenance: Provenance, poisons: tuple[Poison, ...], lease: str | None = None
    ) -> None:
        super().__init__(config, provenance, lease=lease)
        self.poisons = poisons

    def make_stage(self, name: str) -> TableFunction:
        return partial(self.poisoned, name, self.make_inner(name))

    def make_inner(self, name: str) -> TableFunction:
        return super().make_stage(name)

    def poisoned(self, name: str, stage: TableFunction, table: pa.Table) -> pa.Table:
        for poison in self.poisons:
            poison.apply(name, table)
        return stage(table)

    def read(self, plan: ShardPlan, rows: pa.Table | None = None) -> Iterator[Part]:
        for poison in self.poisons:
            poison.apply("read", planned_rows(plan) if rows is None else rows)
        yield from super().read(plan, rows)

    def commit(self, plan: ShardPlan, table: pa.Table, thumbnails: bytes) -> Manifest:
        for poison in self.poisons:
            poison.apply("write", table)
        return super().commit(plan, table, thumbnails)

    def rehearse(self, plan: ShardPlan, table: pa.Table) -> None:
        for poison in self.poisons:
            if poison.kind != "disk":
                poison.apply("write", table)
        super().rehearse(plan, table)


class LightSteps(PoisonedSteps):
    """Poisoned steps with stages that only add their columns, without models and downloads; every row keeps its image.

    `write` writes real shards.
    """

    def make_inner(self, name: str) -> TableFunction:
        return partial(add_defaults, name)


DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "captions": {"caption": "a dog"},
    "parse": {"tokens": [], "noun_chunks": [], "ref_exps": [], "given_chunks": []},
    "ground": {"boxes": []},
    "score": {"box_scores": []},
}


def add_defaults(stage: str, table: pa.Table) -> pa.Table:
    """Add the columns of a stage with the same values in every kept row."""
    return add_columns(table, SCHEMAS[stage], {i: DEFAULTS.get(stage, {}) for i in kept_indices(table)})


def light_steps(config: PipelineConfig, *poisons: Poison) -> Any:
    """A picklable function that returns light steps."""
    from pipeline.run.provenance import make_provenance  # imports torch, which the child processes need not

    return partial(LightSteps, config, make_provenance(config), poisons)
