"""A group of shards at a model worker: their rows share batches."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.faults.fault import is_fault
from pipeline.faults.stage import check_process
from pipeline.read.types import ShardPlan
from pipeline.run import Notes, Steps


class Inferred(NamedTuple):
    """A shard that has left the models: its index, its table without images, and its notes."""

    shard: int
    table: pa.Table
    notes: Notes


class OpenGroup:
    """The shards of a group that have come so far."""

    def __init__(self, steps: Steps) -> None:
        self.steps, self.batches = steps, steps.shared_batches()
        self.notes: dict[int, Notes] = {}
        self.n_added = 0

    def add(self, n_before: int, plan: ShardPlan, table: pa.Table, notes: Notes) -> Iterator[Inferred]:
        """Add the next shard; yield those that are finished. Raises RuntimeError if a shard before it is missing."""
        if self.n_added != n_before:
            raise RuntimeError(f"shard {plan.index} comes after {n_before} others of its group, not {self.n_added}")
        self.n_added += 1
        self.notes[plan.index] = notes
        self.steps.warn_about_miniatures(table)
        self.steps.images.clear()
        yield from self._finished(self.batches.add(plan.index, table))

    def finish(self) -> Iterator[Inferred]:
        """Yield the remaining shards."""
        yield from self._finished(self.batches.finish())
        self.close()

    def close(self) -> None:
        """Release what the group holds."""
        self.batches.close()
        self.notes.clear()

    def _finished(self, results: Iterator[Any]) -> Iterator[Inferred]:
        try:
            for found in results:
                more = {name: {"seconds": s, "rows": float(n)} for name, (s, n) in found.seconds.items()}
                notes = self.notes.pop(found.shard) + Notes(more)  # type: ignore[arg-type]
                yield Inferred(found.shard, found.table, notes)
        except BaseException as error:
            if is_fault(error):
                check_process(error)
            raise
