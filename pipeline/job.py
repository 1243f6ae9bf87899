"""The main job: plan the shards, compute those that are not finished, write the statistics and the report."""

import logging
import sys
from collections.abc import Sequence

from common.config import RESOLVED_FILE, to_yaml
from common.remote import map_concurrently
from pipeline.compute import compute
from pipeline.config import PipelineConfig
from pipeline.paths import check_no_foreign_shards, check_output_outside_input, check_writable, with_absolute_paths
from pipeline.provenance import make_provenance
from pipeline.read.plan import plan_shards
from pipeline.read.types import ShardPlan
from pipeline.report.html import write_report
from pipeline.report.stats import build_stats
from pipeline.report.summary import summary_table
from pipeline.write.stage import is_finished
from pipeline.write.store import Store
from schemas.files import FAILED_FOLDER, REPORT_FILE
from schemas.manifest import Provenance

logger = logging.getLogger("hypergrit")


def run(config: PipelineConfig) -> int:
    """Plan the shards, compute those that are not finished, write the report; return the number of failed shards.

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
    n_failed = compute(unfinished, config, provenance, output) if unfinished else 0
    if n_failed < len(plans):
        report(config, plans)
    if n_failed:
        print(
            f"{n_failed} of {len(plans)} shards failed, see {config.output}/{FAILED_FOLDER}/; "
            "run the same command again to try them again",
            file=sys.stderr,
        )
    return n_failed


def find_unfinished(plans: Sequence[ShardPlan], output: str, provenance: Provenance) -> list[ShardPlan]:
    """The shards whose manifest is missing, or does not match their plan and provenance."""
    finished = map_concurrently(lambda plan: is_finished(output, plan, provenance), plans)
    return [plan for plan, done in zip(plans, finished, strict=True) if not done]


def report(config: PipelineConfig, plans: Sequence[ShardPlan]) -> None:
    """Write stats.json and report.html, and print their summary."""
    stats = build_stats(config.output, shards=[plan.index for plan in plans])
    write_report(config.output, config.report)
    if config.report.summary:
        print(summary_table(stats))
    print(f"report: {config.output}/{REPORT_FILE}")
