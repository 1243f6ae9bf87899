"""The stages of a shard one by one, from file to file: the object in the child process of a search for faulty rows."""

import os
import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pipeline.faults.fault import is_fault
from pipeline.faults.stage import check_process
from pipeline.read.types import ShardPlan
from pipeline.run import Notes, Part, Steps
from schemas.rows import READ

MEMORY_SHARE: Final = 0.8
"""Share of the free memory that a stage may use: beyond it, an allocation fails in this process and in no other."""


class Bench:
    """Runs and probes single stages. `make_steps` returns the steps of the job."""

    def __init__(self, make_steps: Callable[[], Steps]) -> None:
        self.steps = make_steps()
        self.loaded: set[str] = set()

    def load(self, stage: str) -> None:
        """Load a stage, unless it is loaded, and limit the memory of this process.

        A GPU maps more addresses than there is memory.
        """
        if stage in self.loaded:
            return
        if stage not in ("read", "write"):
            self.steps.stage(stage)
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            limit_memory()
        self.loaded.add(stage)

    def run(self, stage: str, plan: ShardPlan, notes: Notes, source: str, target: str) -> Any:
        """Run a stage on the table in `source`; write its result to `target` and return the notes.

        `write` commits the shard and returns a `Done`.
        """
        if stage == "read":
            return save_parts(self.steps.read(plan, load_table(source)), notes, target)
        if stage == "write":
            return self.steps.write(plan, load_table(source), notes)
        if stage == "download":
            table, more = self.steps.download(plan, ((part, Notes({})) for part in load_parts(source)))
            notes += more
        else:
            table, notes = self.steps.run_stage(stage, plan, load_table(source), notes)
        save_table(table, target)
        return notes

    def probe(self, stage: str, plan: ShardPlan, source: str, rows: Sequence[int]) -> None:
        """Run a stage on some rows; the result is thrown away. Exceptions are left to `run`, which finds their rows."""
        try:
            if stage == "read":
                for _ in self.steps.read(plan, take(load_table(source), rows)):
                    pass
            elif stage == "download":
                self.probe_parts(source, rows)
            else:
                apply = partial(self.steps.rehearse, plan) if stage == "write" else self.steps.stage(stage)
                apply(take(load_table(source), rows))
        except BaseException as error:
            if not is_fault(error):
                raise
            check_process(error)

    def probe_parts(self, source: str, rows: Sequence[int]) -> None:
        """Download some rows, part by part: all at once may not fit into memory."""
        start = 0
        for part in load_parts(source):
            inside = [row - start for row in rows if start <= row < start + part.num_rows]
            if inside:
                self.steps.stage("download")(take(part, inside))
            start += part.num_rows


def take(table: pa.Table, rows: Sequence[int]) -> pa.Table:
    """Return some rows of a table."""
    return table.take(pa.array(rows, pa.int64()))


def save_parts(parts: Iterable[Part], notes: Notes, path: str) -> Notes:
    """Write the parts of a shard to an Arrow file, each as a batch; return `notes` and theirs."""
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, READ) as writer:
        for table, more in parts:
            writer.write_table(table.combine_chunks())
            notes += more
    return notes


def save_table(table: pa.Table, path: str) -> None:
    """Write a table to an Arrow file."""
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def load_parts(path: str) -> Iterator[pa.Table]:
    """Yield the batches of an Arrow file, mapped into memory, as tables."""
    reader = pa.ipc.open_file(pa.memory_map(path))
    for i in range(reader.num_record_batches):
        yield pa.Table.from_batches([reader.get_batch(i)])


def load_table(path: str) -> pa.Table:
    """Return the table of an Arrow file, mapped into memory."""
    return pa.ipc.open_file(pa.memory_map(path)).read_all()


def limit_memory() -> None:
    """Limit the addresses of this process to those in use and MEMORY_SHARE of the free memory, where Linux tells it."""
    with suppress(OSError, ValueError, KeyError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + int(MEMORY_SHARE * free_memory()), hard))


def free_memory() -> int:
    """Return the bytes of memory that this process can still use, within its container. Raises OSError elsewhere."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    free = {name: int(value) * 1024 for name, value, *_ in lines}["MemAvailable:"]
    with suppress(OSError, ValueError):  # without a limit, it is "max"
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, limit - used)
    return max(free, 0)
