"""Run a dry run: the checks of the job, a sample, and the predictions. Nothing is written to the output."""

import logging
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Final

from common.config_help import print_text
from common.errors import UserError
from common.text import message
from pipeline.capacity import Capacity, local_capacity
from pipeline.compute import pick_runner, record_faults, with_limits
from pipeline.config import PipelineConfig
from pipeline.dry_run.columnar import pooled
from pipeline.dry_run.estimate import Job, predict
from pipeline.dry_run.requests import input_requests, output_cost, upload_parts
from pipeline.dry_run.sample import choose_rows, sample_plans
from pipeline.dry_run.steps import Measured, SampleSteps
from pipeline.dry_run.text import prediction_lines
from pipeline.faults.fault import Fault
from pipeline.paths import check_no_query, check_output_outside_input, with_absolute_paths
from pipeline.progress import progress
from pipeline.provenance import make_provenance
from pipeline.read.plan import list_files
from pipeline.read.stage import read_parts
from pipeline.read.types import ShardPlan
from pipeline.resume.plan import plan_work
from pipeline.write.fence import describe
from pipeline.write.store import Store
from pipeline.write.temporary import remove_abandoned_folders
from schemas.files import LEASE_FILE
from schemas.manifest import Provenance

logger = logging.getLogger("hypergrit")

READ_SHARDS: Final = 3
"""Whole shards that are read to measure the reading: the sample opens a file for each of its rows."""


def dry_run(config: PipelineConfig) -> int:
    """Check a job, run a sample of its rows, and print the predictions; return the number of failed sample shards.

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
    work = plan_work(config, files, provenance, output)
    logger.info("planning took %.1f s, and takes as long in the job", time.monotonic() - start)
    if not work.unfinished:
        print_text(f"all {len(work.plans):,} shards are finished; the job has nothing to compute")
        return 0
    with runner_at_hand(config) as find_capacity:
        measured, n_failed = run_sample(work.unfinished, config, provenance)
        capacity = find_capacity()  # an autoscaler may have added nodes meanwhile
    if not measured:
        print_text("no sample shard was finished, so nothing can be predicted; the log has the errors")
        return n_failed
    job = Job(
        n_rows=sum(plan.n_rows for plan in work.unfinished),
        n_shards=len(work.unfinished),
        capacity=capacity,
        concurrency=config.download.concurrency,
        host_concurrency=config.download.concurrency_per_host,
        read_rates=read_rates(work.unfinished, config),
        seed=config.dry_run_seed,
    )
    found = predict(pooled(measured, config, provenance), job)
    cost = output_cost(config, provenance)
    parts = upload_parts({name: estimate.value / job.n_shards for name, estimate in found.n_bytes.items()})
    requests = cost.total(job.n_shards) + input_requests(work.unfinished) + (parts * job.n_shards if cost.fixed else 0)
    print_text("\n".join(prediction_lines(found, job, len(work.plans), requests)))
    if work.outdated:
        print_text(f"overwrite=true: the job would discard {len(work.outdated)} finished shards")
    return n_failed


def run_sample(
    plans: Sequence[ShardPlan], config: PipelineConfig, provenance: Provenance
) -> tuple[list[Measured], int]:
    """Run a sample of the rows of `plans` with the runner of the job; return its shards, and the number that failed."""
    samples = choose_rows(plans, config.dry_run_rows, config.rows_per_shard, config.dry_run_seed)
    shards = sample_plans(samples)
    config = with_limits(config, shards)
    faults: list[Fault] = []
    measured: list[Measured] = []
    n_failed = 0
    results = pick_runner(config)(shards, config, partial(SampleSteps, config, provenance, samples))
    try:
        for result in progress(results, sum(shard.n_rows for shard in shards), config):
            if isinstance(result, Measured):
                record_faults(faults, result.faults, config)
                measured.append(result)
            elif isinstance(result, dict):
                n_failed += 1
                logger.warning("a sample shard failed in %s: %s", result["step"], result["error"])
    finally:
        remove_abandoned_folders(tempfile.gettempdir())  # of workers that were killed
    return sorted(measured, key=lambda shard: shard.manifest["shard"]), n_failed


@contextmanager
def runner_at_hand(config: PipelineConfig) -> Iterator[Callable[[], Capacity]]:
    """Join the cluster for the `with` block, and yield a function that returns its capacity. Raises UserError."""
    if config.ray.runner == "local":
        yield local_capacity
        return
    from pipeline.on_ray.capacity import cluster_capacity
    from pipeline.on_ray.run import joined

    with joined(config.ray):
        yield partial(cluster_capacity, config)


def read_rates(plans: Sequence[ShardPlan], config: PipelineConfig) -> list[float]:
    """Read some whole shards; return the seconds per row of each."""
    chosen = Random(f"read {config.dry_run_seed}").sample(list(plans), min(READ_SHARDS, len(plans)))
    rates = []
    for plan in chosen:
        start = time.perf_counter()
        deque(read_parts(plan, config.read), maxlen=0)
        rates.append((time.perf_counter() - start) / plan.n_rows)
    return rates


def check_may_write(output: Store) -> None:
    """Raise UserError if an output cannot be written, as far as that can be told without writing.

    A remote store is only listed.
    """
    if not output.is_local:
        output.names(".")
        logger.info("%s answers; a dry run does not try to write to it", output.url(""))
        return
    folder = output.root
    while not os.path.lexists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise UserError(message(f"cannot write {output.root}: {folder} is a file; choose another output="))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(message(f"cannot write {output.root}: {folder} is not writable; choose another output="))
