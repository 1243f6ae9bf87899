"""The main job: plan the shards, compute those that are not finished, write the statistics and the report."""

import dataclasses
import logging
import sys
from collections.abc import Sequence

from common.config import RESOLVED_FILE, to_yaml
from common.config_help import print_text
from common.text import message
from pipeline.compute import compute
from pipeline.config import PipelineConfig
from pipeline.lease import hold_lease
from pipeline.paths import check_output_outside_input, check_writable, with_absolute_paths
from pipeline.provenance import make_provenance
from pipeline.read.plan import list_files
from pipeline.read.types import ShardPlan
from pipeline.report.html import write_report
from pipeline.report.stats import build_stats
from pipeline.report.summary import summary_table
from pipeline.resume.plan import plan_work
from pipeline.write.store import Store
from pipeline.write.temporary import remove_abandoned
from schemas.files import FAILED_FOLDER, OUTPUT_FOLDERS, REPORT_FILE

logger = logging.getLogger("hypergrit")


def run(config: PipelineConfig) -> int:
    """Plan the shards, compute those that are not finished, write the report; return the number of failed shards.

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
        n_shards = len(work.plans)
        n_rows, n_finished = sum(plan.n_rows for plan in work.plans), n_shards - len(work.unfinished)
        logger.info("%d rows in %d shards, %d of them already finished", n_rows, n_shards, n_finished)
        lease.check()
        if output.is_local:
            remove_abandoned(output.path(folder) for folder in OUTPUT_FOLDERS)
        work.begin(output)
        n_failed = 0
        if work.unfinished:
            output.write(RESOLVED_FILE, to_yaml(dataclasses.replace(config, overwrite=False)))
            n_failed = compute(work.unfinished, config, provenance, output, lease)
        lease.check()
        if n_failed < n_shards:  # a report needs at least one finished shard
            report(config, work.plans)
    if n_failed:
        text = f"{n_failed} of {n_shards} shards failed, see {config.output}/{FAILED_FOLDER}/"
        print(message(f"{text}; run the same command again to try them again"), file=sys.stderr)
    return n_failed


def report(config: PipelineConfig, plans: Sequence[ShardPlan]) -> None:
    """Write stats.json and report.html, and print their summary."""
    stats = build_stats(config.output, shards=[plan.index for plan in plans])
    write_report(config.output, config.report)
    if config.report.summary:
        print_text(summary_table(stats))
    print_text(f"report: {config.output}/{REPORT_FILE}")
