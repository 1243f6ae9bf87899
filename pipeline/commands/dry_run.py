"""Run a dry run: the checks of the job, and a sample through its stages, scaled. Nothing is written to the output."""

import dataclasses
import json
import logging
import os
import tempfile
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Final

import pyarrow as pa

from hypergrit_common.config_help import print_text
from hypergrit_common.errors import UserError
from hypergrit_common.lease import describe
from hypergrit_common.text import counted, duration_text, message, one_line
from pipeline.config import PipelineConfig, WriteConfig
from pipeline.output.record import check_secrets
from pipeline.output.store import Store, check_own_files, remove_abandoned_folders, temporary_folder_prefix
from pipeline.output.write.stage import write_shard
from pipeline.read.plan import list_files
from pipeline.read.source import PART_BYTES, planned_rows, read_parts
from pipeline.read.types import ShardPlan
from pipeline.report.advice import HINTS
from pipeline.report.stats import bytes_text
from pipeline.run.job import plan_with_models, tell_input
from pipeline.run.loop import Run
from pipeline.run.provenance import check_no_query, check_output_outside_input, make_provenance, with_absolute_paths
from pipeline.run.steps import Done, Notes, Part, Recipe, Steps, join
from pipeline.stages.download.permits import PermitAddress
from pipeline.stages.order import steps_of
from schemas.files import LEASE_FILE, MANIFEST_FILE, TIMINGS_FILE
from schemas.manifest import Manifest, Provenance, Timings
from schemas.rows import SCORED
from schemas.status import shown_stage

logger = logging.getLogger("hypergrit")

N_ROWS: Final = 200
"""Rows in the sample of `dry_run=true`: a share of rows is then known to about 7 %."""
READ_SHARDS: Final = 3
"""Whole shards that are read to measure the reading: the sample opens a file for each of its rows."""

Sources = Sequence[tuple[ShardPlan, Sequence[int]]]
"""Shards of the job, and the positions in each of the chosen rows."""


def choose_rows(plans: Sequence[ShardPlan], n_rows: int, rows_per_shard: int) -> list[tuple[ShardPlan, Sources]]:
    """Choose `n_rows` rows of all plans, the same each time; return the sample shards, each with where its rows are.

    The rows are divided into `n_rows` runs of equal length, and one row of each run is chosen at random. Each sample
    shard gets rows of the whole input, at most `rows_per_shard`. If there are no more rows, the plans are the sample.
    """
    ends = list(accumulate(plan.n_rows for plan in plans))
    total = ends[-1] if ends else 0
    if n_rows >= total:
        return [(plan, [(plan, range(plan.n_rows))]) for plan in plans]
    random = Random("dry run 0")
    bounds = [*(i * total // n_rows for i in range(n_rows)), total]
    chosen = [random.randrange(start, end) for start, end in pairwise(bounds)]
    found, n_shards = list[tuple[ShardPlan, Sources]](), -(-n_rows // rows_per_shard)
    for index in range(n_shards):
        rows, by_plan = chosen[index::n_shards], dict[int, list[int]]()
        for row in rows:
            number = bisect_right(ends, row)
            by_plan.setdefault(number, []).append(row - (ends[number] - plans[number].n_rows))
        sources = [(plans[number], positions) for number, positions in by_plan.items()]
        found.append((ShardPlan(index, 0, len(rows), ()), sources))
    return found


@dataclass(frozen=True)
class Measured(Done):
    """A sample shard, with the seconds of its stages, and the bytes of its files by folder."""

    timings: Timings
    n_bytes: Counter[str]


class SampleSteps(Steps):
    """The steps of a job, but for the chosen rows of many shards, and with a folder that is removed as the output.

    `samples` are the sources of the rows of each sample shard, by its index.
    """

    stores = False

    def __init__(
        self,
        config: PipelineConfig,
        provenance: Provenance,
        samples: Mapping[int, Sources],
        permits: PermitAddress | None = None,
    ) -> None:
        super().__init__(config, provenance, permits)
        self.samples = samples

    def read(self, plan: ShardPlan, rows: pa.Table | None = None) -> Iterator[Part]:
        """Yield the chosen rows of a sample shard in parts of bounded size. Raises ShardError."""
        parts: list[Part] = []
        for source, positions in self.samples[plan.index]:
            for part in super().read(source, planned_rows(source).take(pa.array(positions, pa.int64()))):
                parts.append(part)
                if sum(table.nbytes for table, _ in parts) >= PART_BYTES:
                    yield join(parts)
                    parts.clear()
        if parts:
            yield join(parts)

    def download(self, plan: ShardPlan, parts: Iterable[Part]) -> Part:
        """Download as the job does; the time is that of the CPU, without the waiting for the network."""
        start = time.process_time()
        table, notes = super().download(plan, parts)
        timing = {**notes.timings["download"], "seconds": time.process_time() - start}
        return table, Notes({**notes.timings, "download": timing}, notes.faults)  # type: ignore[dict-item]

    def write(self, plan: ShardPlan, table: pa.Table, notes: Notes) -> Measured:
        """Write the files of the sample shard to a temporary folder, measure them and remove them."""
        remove_abandoned_folders(tempfile.gettempdir())
        with tempfile.TemporaryDirectory(prefix=temporary_folder_prefix()) as folder:
            done = Steps(dataclasses.replace(self.config, output=folder), self.provenance).write(plan, table, notes)
            timings = json.loads(Path(folder, TIMINGS_FILE.path(plan.index)).read_text("utf-8"))
            return Measured(done.manifest, done.faults, timings, shard_bytes(folder, done.manifest))


def shard_bytes(output: str, manifest: Manifest) -> Counter[str]:
    """Return the bytes of the files of a shard and of its manifest, by their folders."""
    found = Counter[str]()
    for name in [*manifest["files"], MANIFEST_FILE.path(manifest["shard"])]:
        found[name.partition("/")[0]] += Path(output, name).stat().st_size
    return found


def empty_bytes(write: WriteConfig, provenance: Provenance) -> Counter[str]:
    """Return the bytes of the files of a shard without rows. Raises UserError if there is no place for them."""
    try:
        with tempfile.TemporaryDirectory(prefix=temporary_folder_prefix()) as folder:
            plan = ShardPlan(0, 0, 0, ())
            return shard_bytes(folder, write_shard(SCORED.empty_table(), plan, write, folder, provenance))
    except OSError as error:
        raise UserError(
            f"{tempfile.gettempdir()} cannot be used ({one_line(error)}); make space, or set TMPDIR"
        ) from error


def prediction_lines(
    samples: Sequence[Measured], plans: Sequence[ShardPlan], config: PipelineConfig, fixed: Counter[str], gpus: float
) -> Iterator[str]:
    """Yield the prediction of a job that computes `plans`: the values of its sample shards, scaled to all rows.

    At least one row was sampled. `fixed` are the bytes of a shard without rows, `gpus` those of a model worker.
    """
    steps = steps_of(config)
    names = [name for stages in steps.values() for name in stages]
    drops, n_bytes, seconds = Counter[tuple[str, str]](), Counter[str](), dict.fromkeys(names, 0.0)
    for sample in samples:
        dropped = sample.manifest["counts"]["dropped"]
        drops.update({(stage, reason): n for stage, reasons in dropped.items() for reason, n in reasons.items()})
        n_bytes.update(sample.n_bytes)
        for name, timing in sample.timings.items():
            seconds[name] += timing["seconds"]
    n = sum(sample.manifest["counts"]["read"] for sample in samples)
    n_rows = sum(plan.n_rows for plan in plans)
    share = sum(sample.manifest["counts"]["kept"] for sample in samples) / n
    spent = {name: seconds[name] * n_rows / n for name in names} | {"read": read_rate(plans, config) * n_rows}
    yield f"sample: {n:,} of {counted(n_rows, 'row')} in {counted(len(plans), 'shard')}; its values are scaled"
    yield f"{'rows kept':32}{share * n_rows:>14,.0f}  {share:6.1%}"
    for (stage, reason), count in sorted(drops.items(), key=lambda item: (names.index(item[0][0]), -item[1])):
        yield f"  {shown_stage(stage, reason) + ': ' + reason:30}{count / n * n_rows:>14,.0f}  {count / n:6.1%}"
        if count == n and reason in HINTS:
            yield f"  all rows: {HINTS[reason]}"
    for folder, size in n_bytes.items():
        total = (size - fixed[folder] * len(samples)) * n_rows / n + fixed[folder] * len(plans)
        yield f"{f'bytes of {folder}/':32}{bytes_text(total):>14}"
    model = sum(spent[name] for name in steps["infer"])
    yield f"{'CPU time':32}{duration_text(sum(spent.values()) - (model if gpus else 0)):>14}"
    yield f"{'GPU time':32}{duration_text(model * gpus):>14}"
    yield "  " + ", ".join(f"{name} {duration_text(value)}" for name, value in spent.items())
    yield "  without the start of workers and the waits for downloads"


def dry_run(config: PipelineConfig) -> int:
    """Check a job, run a sample of its rows, and print the prediction; return the number of failed sample shards.

    Raises UserError for what the job would raise it for.
    """
    config = with_absolute_paths(config)
    files = list_files(config.input)
    check_no_query(config, [path for path, _ in files])
    check_output_outside_input(config, [path for path, _ in files])
    output = Store(config.output)
    check_may_write(output)
    if (lease := output.read(LEASE_FILE)) is not None:
        logger.warning("the output is in use by %s; the prediction counts its shards as they are now", describe(lease))
    provenance = make_provenance(config)
    start = time.monotonic()
    work = plan_with_models(config, files, provenance, output)
    tell_input(work, config.quiet)
    check_secrets(work.old_record, config)
    logger.info("planning took %.1f s, and takes as long in the job", time.monotonic() - start)
    if not work.unfinished:
        print_text(f"{counted(len(work.plans), 'shard')}, all finished; the job has nothing to compute")
        return 0
    measured, n_failed = run_sample(work.unfinished, config, provenance)
    if not measured:
        print_text("no sample shard was finished, so nothing can be predicted; the log has the errors")
        return n_failed
    fixed, gpus = empty_bytes(config.write, provenance), gpus_of_models(config)
    print_text("\n".join(prediction_lines(measured, work.unfinished, config, fixed, gpus)))
    if n_finished := len(work.plans) - len(work.unfinished):
        print_text(f"{counted(n_finished, 'further shard')} finished already, and not counted")
    if work.outdated:
        print_text(f"overwrite=true: the job would discard {counted(len(work.outdated), 'finished shard')}")
    return n_failed


def run_sample(
    plans: Sequence[ShardPlan], config: PipelineConfig, provenance: Provenance
) -> tuple[list[Measured], int]:
    """Run a sample of the rows of `plans` with the runner of the job; return its shards, and the number that failed."""
    n_rows = N_ROWS if config.dry_run is True else int(config.dry_run)
    samples = choose_rows(plans, n_rows, config.rows_per_shard)
    shards = [shard for shard, _ in samples]
    run = Run(config, limited=shards)
    make = partial(SampleSteps, run.config, provenance, {shard.index: sources for shard, sources in samples})
    try:
        results = list(run.results(Recipe(make, run.config), shards))
    finally:
        remove_abandoned_folders(tempfile.gettempdir())  # of workers that were killed
    return sorted(results, key=lambda shard: shard.index), len(run.failed)


def read_rate(plans: Sequence[ShardPlan], config: PipelineConfig) -> float:
    """Read some whole shards; return the seconds per row."""
    chosen = Random("read 0").sample(list(plans), min(READ_SHARDS, len(plans)))
    start = time.perf_counter()
    for plan in chosen:
        deque(read_parts(plan, config.read), maxlen=0)
    return (time.perf_counter() - start) / sum(plan.n_rows for plan in chosen)


def gpus_of_models(config: PipelineConfig) -> float:
    """Return the GPUs of a model worker, 0 if models compute on the CPU. Raises UserError."""
    if config.ray.runner == "local":
        import torch

        return float(config.ground.device != "cpu" and torch.cuda.is_available())
    from pipeline.run.ray import joined
    from pipeline.run.ray_workers import Cluster, Models

    with joined(config.ray):
        (cluster := Cluster()).poll(now=True)
        return float(Models(b"", config.ray).request(cluster).get("GPU", 0.0))


def check_may_write(output: Store) -> None:
    """Raise UserError if an output cannot be written, as far as that can be told without writing, or is of others.

    A remote store is only listed.
    """
    check_own_files(output)
    if not output.is_local:
        logger.info("%s answers; a dry run does not try to write to it", output.url(""))
        return
    folder = output.root
    while not os.path.lexists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise UserError(message(f"cannot write {output.root}: {folder} is a file; choose another output="))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(message(f"cannot write {output.root}: {folder} is not writable; choose another output="))
