"""The main job: plan the shards, compute those that are not finished, write the statistics and the report."""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from tqdm import tqdm

from common.config import RESOLVED_FILE, to_yaml
from common.config_help import print_text
from common.remote import map_concurrently
from pipeline.config import PipelineConfig
from pipeline.paths import check_no_foreign_shards, check_output_outside_input, check_writable, with_absolute_paths
from pipeline.provenance import make_provenance
from pipeline.read.plan import plan_shards
from pipeline.read.types import ShardPlan
from pipeline.report.html import write_report
from pipeline.report.stats import build_stats
from pipeline.report.summary import summary_table
from pipeline.run import run_local
from pipeline.write.stage import is_finished
from pipeline.write.store import Store
from schemas.files import REPORT_FILE, RUN_TIMINGS_FILE
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
    plans = plan_shards(config.input, config.rows_per_shard, config.limit, config.read)
    check_output_outside_input(config, plans)
    output = Store(config.output)
    check_writable(output)
    check_no_foreign_shards(output, config.output, len(plans))
    provenance = make_provenance(config)
    unfinished = find_unfinished(plans, config.output, provenance)
    n_rows, n_finished = sum(plan.n_rows for plan in plans), len(plans) - len(unfinished)
    logger.info("%d rows in %d shards, %d of them already finished", n_rows, len(plans), n_finished)
    output.write(RESOLVED_FILE, to_yaml(config))
    if unfinished:
        compute(unfinished, config, provenance, output)
    return report(config, plans)


def find_unfinished(plans: Sequence[ShardPlan], output: str, provenance: Provenance) -> list[ShardPlan]:
    """The shards whose manifest is missing, or does not match their plan and provenance."""
    finished = map_concurrently(lambda plan: is_finished(output, plan, provenance), plans)
    return [plan for plan, done in zip(plans, finished, strict=True) if not done]


def compute(plans: Sequence[ShardPlan], config: PipelineConfig, provenance: Provenance, output: Store) -> None:
    """Compute and commit these shards, show the progress, record the duration."""
    start = time.perf_counter()
    for _ in progress(pick_runner(config)(plans, config, provenance), sum(plan.n_rows for plan in plans)):
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
        print_text(summary_table(stats))
    print_text(f"report: {config.output}/{REPORT_FILE}")
    return stats
