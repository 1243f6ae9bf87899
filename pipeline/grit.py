"""The main job: image-text pairs in, grounded training shards and a report out. `python pipeline/grit.py --help` teaches every key."""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started as a file, from any folder
    sys.path.insert(0, str(ROOT))

from tqdm import tqdm  # noqa: E402

from common.config import to_yaml  # noqa: E402
from common.config_help import print_text  # noqa: E402
from common.errors import UserError  # noqa: E402
from common.remote import map_concurrently  # noqa: E402
from pipeline.config import PipelineConfig, load_config  # noqa: E402
from pipeline.help import help_text  # noqa: E402
from pipeline.paths import check_writable, refuse_foreign_shards, refuse_output_in_input, with_absolute_places  # noqa: E402
from pipeline.provenance import make_provenance  # noqa: E402
from pipeline.read.plan import plan_shards  # noqa: E402
from pipeline.read.types import ShardPlan  # noqa: E402
from pipeline.report.html import write_report  # noqa: E402
from pipeline.report.stats import build_stats  # noqa: E402
from pipeline.report.summary import summary_table  # noqa: E402
from pipeline.run import run_local  # noqa: E402
from pipeline.write.stage import is_finished  # noqa: E402
from pipeline.write.store import Store  # noqa: E402

logger = logging.getLogger("hypergrit")


def main(arguments: Sequence[str]) -> int:
    """Run the job; returns the exit code that --help promises."""
    if "-h" in arguments or "--help" in arguments:
        print_text(help_text())
        return 0
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    try:
        run(load_config(arguments))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: finished shards are kept, and the same command goes on", file=sys.stderr)
        return 130
    return 0


def run(config: PipelineConfig) -> dict[str, Any]:
    """Plan the shards, run those that are not finished, write the report; returns the statistics.

    Raises UserError for what the user can mend, before anything is computed where that can be known.
    """
    config = with_absolute_places(config)
    plans = plan_shards(config.input, config.rows_per_shard, config.limit, config.read)
    refuse_output_in_input(config, plans)
    output = Store(config.output)
    check_writable(output)
    refuse_foreign_shards(output, config.output, len(plans))
    provenance = make_provenance(config)
    todo = unfinished(plans, config.output, provenance)
    n_rows = sum(plan.n_rows for plan in plans)
    logger.info("%d rows in %d shards, %d of them finished before", n_rows, len(plans), len(plans) - len(todo))
    output.write("config.yaml", to_yaml(config))
    start = time.perf_counter()
    if todo:
        for _ in progress(runner(config)(todo, config, provenance), todo):
            pass
        run_facts = {"wall_seconds": time.perf_counter() - start, "shards": len(todo)}
        output.write("_timings/run.json", json.dumps(run_facts))
    stats = build_stats(config.output, shards=[plan.index for plan in plans])
    write_report(config.output, config.report)
    if config.report.summary:
        print(summary_table(stats))
    print(f"report: {config.output}/report.html")
    return stats


def unfinished(plans: Sequence[ShardPlan], output: str, provenance: dict[str, Any]) -> list[ShardPlan]:
    """The shards still to be made."""
    finished = map_concurrently(lambda plan: is_finished(output, plan, provenance), plans)
    return [plan for plan, done in zip(plans, finished, strict=True) if not done]


Runner = Callable[[Sequence[ShardPlan], PipelineConfig, dict[str, Any]], Iterator[dict[str, Any]]]
"""Makes the shards of these plans, with this provenance; yields each manifest once it is committed."""


def runner(config: PipelineConfig) -> Runner:
    """run_local or run_on_ray; Ray is imported only where it is used."""
    if config.ray.runner == "local":
        return run_local
    from pipeline.on_ray import run_on_ray

    return run_on_ray


def progress(manifests: Iterable[dict[str, Any]], todo: Sequence[ShardPlan]) -> Iterator[dict[str, Any]]:
    """Count what comes: a bar on a terminal, elsewhere a line at least five seconds apart."""
    total, kept, dropped, start, last = sum(plan.n_rows for plan in todo), 0, 0, time.monotonic(), 0.0
    terminal = sys.stderr.isatty()
    with tqdm(total=total, unit=" rows", disable=not terminal, smoothing=0) as bar:
        for manifest in manifests:
            counts = manifest["counts"]
            kept, dropped = kept + counts["kept"], dropped + counts["read"] - counts["kept"]
            bar.update(counts["read"])
            bar.set_postfix(kept=kept, dropped=dropped)
            now, done = time.monotonic(), kept + dropped
            if not terminal and (now - last >= 5 or done == total):
                rate = done / (now - start)
                left = (total - done) / rate if rate else 0
                logger.info(
                    "%d of %d rows, %.1f rows/s, %d dropped so far, %.0f s left", done, total, rate, dropped, left
                )
                last = now
            yield manifest


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
