"""The main job: plan the shards, compute those that are not finished, write the statistics and the report."""

import dataclasses
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from tqdm import tqdm

from common.config import RESOLVED_FILE, to_yaml
from pipeline.config import PipelineConfig
from pipeline.lease import Lease, hold_lease
from pipeline.paths import check_output_outside_input, check_writable, with_absolute_paths
from pipeline.provenance import make_provenance
from pipeline.read.plan import list_files
from pipeline.read.types import ShardPlan
from pipeline.report.html import write_report
from pipeline.report.stats import build_stats
from pipeline.report.summary import summary_table
from pipeline.resume.plan import plan_work
from pipeline.run import run_local
from pipeline.write.store import Store
from pipeline.write.temporary import remove_abandoned
from schemas.files import OUTPUT_FOLDERS, REPORT_FILE, RUN_TIMINGS_FILE
from schemas.manifest import Manifest, Provenance, RunTimings
from schemas.stats import Statistics

logger = logging.getLogger("hypergrit")

LOG_INTERVAL_S = 5

Runner = Callable[[Sequence[ShardPlan], PipelineConfig, Provenance], Iterator[Manifest]]
"""Computes the planned shards; yields each manifest once it is committed."""


def run(config: PipelineConfig) -> Statistics:
    """Plan the shards, compute those that are not finished, write the report; return the statistics.

    Raises UserError for errors that the user can fix, if possible before anything is computed.
    """
    config = with_absolute_paths(config)
    files = list_files(config.input)
    check_output_outside_input(config, [path for path, _ in files])
    output = Store(config.output)
    check_writable(output)
    with hold_lease(output) as lease:
        provenance = make_provenance(config)
        work = plan_work(config, files, provenance, output)
        n_rows, n_finished = sum(plan.n_rows for plan in work.plans), len(work.plans) - len(work.unfinished)
        logger.info("%d rows in %d shards, %d of them already finished", n_rows, len(work.plans), n_finished)
        lease.check()
        if output.is_local:
            remove_abandoned(output.path(folder) for folder in OUTPUT_FOLDERS)
        work.begin(output)
        if work.unfinished:
            output.write(RESOLVED_FILE, to_yaml(dataclasses.replace(config, overwrite=False)))
            compute(work.unfinished, config, provenance, output, lease)
        lease.check()
        return report(config, work.plans)


def compute(
    plans: Sequence[ShardPlan], config: PipelineConfig, provenance: Provenance, output: Store, lease: Lease
) -> None:
    """Compute and commit these shards, show the progress, record the duration."""
    start = time.perf_counter()
    manifests = lease.guard(pick_runner(config)(plans, config, provenance))
    for _ in progress(manifests, sum(plan.n_rows for plan in plans)):
        pass
    timings: RunTimings = {"wall_seconds": time.perf_counter() - start, "shards": len(plans)}
    output.write(RUN_TIMINGS_FILE, json.dumps(timings))


def pick_runner(config: PipelineConfig) -> Runner:
    """The runner of `ray.runner`; Ray is imported only if it is used."""
    if config.ray.runner == "local":
        return run_local
    from pipeline.on_ray import run_on_ray

    return run_on_ray


def progress(manifests: Iterable[Manifest], n_rows: int) -> Iterator[Manifest]:
    """Pass on the manifests of shards with `n_rows` rows in total, and show their counts.

    The counts are in a progress bar on a terminal, elsewhere in a log line at most every `LOG_INTERVAL_S` seconds.
    """
    kept, dropped, start, last_log = 0, 0, time.monotonic(), 0.0
    is_terminal = sys.stderr.isatty()
    with tqdm(total=n_rows, unit=" rows", disable=not is_terminal, smoothing=0) as bar:
        for manifest in manifests:
            counts = manifest["counts"]
            kept, dropped = kept + counts["kept"], dropped + counts["read"] - counts["kept"]
            bar.update(counts["read"])
            bar.set_postfix(kept=kept, dropped=dropped)
            now, done = time.monotonic(), kept + dropped
            if not is_terminal and (now - last_log >= LOG_INTERVAL_S or done == n_rows):
                rate = done / (now - start)
                left_s = (n_rows - done) / rate if rate else 0
                logger.info(
                    "%d of %d rows, %.1f rows/s, %d dropped so far, %.0f s left", done, n_rows, rate, dropped, left_s
                )
                last_log = now
            yield manifest


def report(config: PipelineConfig, plans: Sequence[ShardPlan]) -> Statistics:
    """Write stats.json and report.html, print their summary, return the statistics."""
    stats = build_stats(config.output, shards=[plan.index for plan in plans])
    write_report(config.output, config.report)
    if config.report.summary:
        print(summary_table(stats))
    print(f"report: {config.output}/{REPORT_FILE}")
    return stats
