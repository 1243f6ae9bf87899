"""Compute shards in child processes of this one, without Ray."""

import dataclasses
import logging
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from hypergrit_common.processes import free_memory
from pipeline.config import PipelineConfig, RayConfig
from pipeline.faults import (
    START_S,
    Child,
    Fault,
    ProcessDiedError,
    RemoteError,
    ShardError,
    StepTimeoutError,
    check_fault,
    check_limit,
    describe,
    drop_faulty,
    find_faulty,
)
from pipeline.output.store import temporary_folder_prefix
from pipeline.read.source import planned_rows
from pipeline.read.types import ShardPlan, Task
from pipeline.run.attempts import Attempts, Shard
from pipeline.run.progress import Follower, tell
from pipeline.run.steps import Notes, Part, Recipe, Steps
from pipeline.stages.order import STEPS, Step
from schemas.manifest import Manifest, Provenance
from schemas.rows import READ
from schemas.table import kept_indices

# The stages of a shard one by one, from file to file: the object in the child process of a search for faulty rows.

MEMORY_SHARE: Final = 0.8
"""Share of the free memory that a stage may use: beyond it, an allocation fails in this process and in no other."""
LEAST_BYTES: Final = 1 << 32


class Bench:
    """Runs and probes single stages. `make_steps` returns the steps of the job."""

    def __init__(self, make_steps: Callable[[], Steps]) -> None:
        self.steps = make_steps()
        self.loaded: set[str] = set()

    def stages(self, step: Step) -> tuple[str, ...]:
        """Return the names of the stages of a step."""
        return self.steps.stages_of[step]

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
            check_fault(error)

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


def limit_memory(n_processes: int = 1) -> int:
    """Limit the addresses of this process to those in use and MEMORY_SHARE of the free memory, where Linux tells it.

    That of one of `n_processes` is at least LEAST_BYTES: threads and allocators reserve addresses that they never use.
    Returns these bytes; 0 without a limit.
    """
    with suppress(OSError, ValueError, KeyError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        share = int(MEMORY_SHARE * free_memory())
        share = share if n_processes == 1 else max(share // n_processes, LEAST_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, (used + share, hard))
        return share
    return 0


@contextmanager
def limited_memory(n_processes: int) -> Iterator[int]:
    """Limit the memory of this process like `limit_memory` for the `with` block; its value is the limit."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    n_bytes = limit_memory(n_processes)
    try:
        yield n_bytes
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# Compute a step of a shard on which processes die or hang: find the rows, drop them, keep the others.

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
        with (
            tempfile.TemporaryDirectory(prefix=temporary_folder_prefix()) as folder,
            Child(partial(Bench, self.make_steps)) as child,
        ):
            source = Path(folder) / "input.arrow"
            save_table(planned_rows(plan) if table is None else table, str(source))
            for stage in child.call("stages", step, timeout_s=START_S):
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


class Worker:
    """The object in a child: the steps, and what one leaves for the next, which never leaves the child."""

    def __init__(self, recipe: Recipe) -> None:
        self.last, self.steps = recipe.steps[-1], recipe.make()
        self.state: tuple[Any, ...] = ()
        for step in STEPS if recipe.job is not None else ():
            self.steps.load(step)

    def run(self, step: Step, plan: ShardPlan | Task, is_first: bool) -> Any:
        """Run a step of a shard; return the notes on it, or the result of the last one."""
        state, self.state = () if is_first else self.state, ()
        result = getattr(self.steps, step)(plan, *state)
        if step == self.last:
            return result
        self.state = result
        return result[1]


def run_local(plans: Sequence[ShardPlan], config: PipelineConfig, provenance: Provenance) -> Iterator[Manifest]:
    """Compute the shards one after the other in a child process; yield each manifest once it is committed.

    `provenance` is `make_provenance(config)`. Rows on which a stage raises, crashes or hangs are
    dropped as `internal_error`. Raises UserError for errors that the user can fix, and ShardError for a shard that
    fails for another reason.

    >>> import csv, tempfile
    >>> from pathlib import Path
    >>> from pipeline import load_config, make_provenance, plan_shards, run_local
    >>> folder = Path(tempfile.mkdtemp())
    >>> rows = [("url", "caption"), ("ftp://example.org/a.jpg", "a cat"), ("", "a dog")]
    >>> with (folder / "pairs.csv").open("w", newline="") as file:
    ...     csv.writer(file).writerows(rows)
    >>> config = load_config([f"input={folder / 'pairs.csv'}", f"output={folder / 'out'}"])
    >>> plans = plan_shards(config.input, config.rows_per_shard, config.limit, config.read)
    >>> [manifest["counts"] for manifest in run_local(plans, config, make_provenance(config))]
    [{'read': 2, 'kept': 0, 'dropped': {'download': {'invalid_url': 1}, 'read': {'missing_url': 1}}}]
    """
    for result in compute_local(plans, config.ray, Recipe(partial(Steps, config, provenance), config)):
        yield result.committed()


def compute_local(plans: Sequence[ShardPlan | Task], config: RayConfig, recipe: Recipe) -> Iterator[Any]:
    """Compute shards in child processes, those of a job in one; yield the result of each, or that it has `Failed`.

    They are in order of completion, and no shard begins before a result is asked for. Raises UserError for errors that
    the user can fix, and TooManyFaultsError.
    """
    n_children = 1 if recipe.job is not None else min(config.cpu_workers or os.cpu_count() or 1, len(plans))
    with ExitStack() as stack:
        children = [stack.enter_context(Child(partial(Worker, recipe))) for _ in range(n_children)]
        pool = ThreadPoolExecutor(n_children)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        tell(Follower.loading, recipe.steps)
        children[0].start()
        tell(Follower.loading, ())
        yield from compute_in(children, pool, plans, config, recipe)


def compute_in(
    children: Sequence[Child], pool: Executor, plans: Sequence[ShardPlan | Task], config: RayConfig, recipe: Recipe
) -> Iterator[Any]:
    """Compute shards in these children like `compute_local`. `pool` waits for their answers.

    A child computes the steps of a shard one after the other: what a step leaves never leaves the child.
    """
    attempts = Attempts(plans, recipe.steps, config.retries, is_local=True)
    waiting, idle = attempts.tasks[recipe.steps[0]], list(children)
    running = dict[Future[Any], tuple[Child, Shard]]()

    def start(child: Child, shard: Shard) -> None:
        tell(Follower.begun, shard.plan.index, shard.step, shard.plan.n_rows)
        running[pool.submit(call_step, child, shard, config, recipe)] = child, shard

    while waiting or running or attempts.later:
        attempts.wake()
        while idle and waiting:
            start(idle.pop(0), waiting.popleft())
        if not running:
            time.sleep(max(0.0, min(due for due, _ in attempts.later) - time.monotonic()))
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            child, shard = running.pop(future)
            try:
                result = future.result()
            except (ProcessDiedError, StepTimeoutError, ShardError, RemoteError) as error:
                tell(Follower.lost, shard.plan.index)
                trace = error.traceback if isinstance(error, RemoteError) else ""
                is_crash = isinstance(error, ProcessDiedError | StepTimeoutError)
                attempts.count(shard, describe(error), trace, is_crash)
            else:
                if shard.step == recipe.steps[-1]:
                    tell(Follower.ended, shard.plan.index, shard.step)
                    idle.append(child)
                    yield result
                    continue
                shard.state = result if shard.is_rescued else ()
                if attempts.has_passed(shard, result[1] if shard.is_rescued else result):
                    start(child, shard)
                    continue
            idle.append(child)
            while attempts.failed:
                yield attempts.failed.popleft()


def call_step(child: Child, shard: Shard, config: RayConfig, recipe: Recipe) -> Any:
    """Return the notes on a step of a shard, or its result; if it `is_rescued`, what the step returns in children of its own.

    Raises like `Child.call`.
    """
    if shard.is_rescued:
        assert recipe.job is not None
        rescue = Rescue(recipe.make, config.step_timeout_s, recipe.job.max_internal_errors)
        return rescue.run(shard.step, shard.plan, *shard.state)
    is_first = shard.step == recipe.steps[0]
    return child.call("run", shard.step, shard.plan, is_first, timeout_s=config.step_timeout_s)
