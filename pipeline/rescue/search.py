"""Compute a step of a shard on which processes die or hang: find the rows, drop them, keep the others."""

import dataclasses
import logging
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pipeline.faults.fault import Fault, check_limit, describe
from pipeline.faults.search import find_faulty
from pipeline.faults.stage import drop_faulty
from pipeline.read.stage import planned_rows
from pipeline.read.types import ShardPlan
from pipeline.rescue.bench import Bench, load_table, save_table
from pipeline.rescue.child import START_S, Child, ProcessDiedError, StepTimeoutError
from pipeline.run import STAGES_OF, Notes, Step, Steps
from schemas.table import kept_indices

logger = logging.getLogger("hypergrit")

LEAST_PROBE_S: Final = 30.0
"""Time limit of a probe of one row; that of more rows is their share of the limit of the step, if it is larger."""
ROUNDS: Final = 3


class Rescue:
    """Runs the stages of one step one after the other, each from a file, in a child process.

    If the child dies or exceeds the time limit, parts of the rows are tried in further children until the rows at
    fault are found. The stage then runs once on the whole shard without them, as after an exception.
    """

    def __init__(self, make_steps: Callable[[], Steps], timeout_s: float, limit: int | None) -> None:
        self.make_steps, self.timeout_s, self.limit = make_steps, timeout_s, limit

    def run(self, step: Step, plan: ShardPlan, table: pa.Table | None = None, notes: Notes | None = None) -> Any:
        """Return what the step returns, for the table and the notes of the previous step.

        Raises ProcessDiedError or StepTimeoutError if no single row is at fault, and the exceptions of `Child.call`.
        """
        result: Any = notes or Notes({})
        with tempfile.TemporaryDirectory() as folder, Child(partial(Bench, self.make_steps)) as child:
            source = Path(folder) / "input.arrow"
            save_table(planned_rows(plan) if table is None else table, str(source))
            for stage in STAGES_OF[step]:
                target = source.with_name(f"{stage}.arrow")
                result = self._run_stage(child, stage, plan, result, str(source), str(target))
                source = target
            return result if step == "write" else (load_table(str(source)), result)

    def _run_stage(self, child: Child, stage: str, plan: ShardPlan, notes: Notes, source: str, target: str) -> Any:
        for _ in range(ROUNDS):
            try:
                return self._call(child, self.timeout_s, "run", stage, plan, notes, source, target)
            except (ProcessDiedError, StepTimeoutError) as death:
                logger.warning("shard %d: %s in stage %r; searching for the rows", plan.index, describe(death), stage)
                table = load_table(source)
                faults = self._search(child, stage, plan, source, table)
                if not faults:
                    raise
                notes = dataclasses.replace(notes, faults=(*notes.faults, *faults.values()))
                check_limit(notes.faults, self.limit)
                source = f"{source}.without"
                save_table(drop_faulty(table, stage, faults), source)
        raise ProcessDiedError(f"stage {stage!r} still ends its process after {ROUNDS} searches")

    def _search(self, child: Child, stage: str, plan: ShardPlan, source: str, table: pa.Table) -> dict[int, Fault]:
        kept, keys = kept_indices(table), table["key"]

        def probe(rows: Sequence[int]) -> Fault | None:
            limit_s = max(self.timeout_s * len(rows) / len(kept), min(self.timeout_s, LEAST_PROBE_S))
            try:
                self._call(child, limit_s, "probe", stage, plan, source, list(rows))
            except (ProcessDiedError, StepTimeoutError) as death:
                return Fault(keys[rows[0]].as_py() if rows else "", stage, describe(death))
            return None

        if stage == "read" and probe([]) is not None:
            return {}  # the file itself, not one of its rows
        return find_faulty(kept, probe, self.limit)

    def _call(self, child: Child, timeout_s: float, method: str, stage: str, *arguments: Any) -> Any:
        """Call a method of the bench; the time limit does not include loading the stage."""
        child.call("load", stage, timeout_s=START_S)  # of no effect if the child has loaded it
        return child.call(method, stage, *arguments, timeout_s=timeout_s)
