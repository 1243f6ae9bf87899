"""The main job: image-text pairs in, grounded training shards and a report out. `python pipeline/grit.py --help` teaches every key."""

import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started as a file, from any folder
    sys.path.insert(0, str(ROOT))

from tqdm import tqdm  # noqa: E402

from common.errors import UserError  # noqa: E402
from common.load import to_yaml  # noqa: E402
from common.remote import open_store, side_by_side  # noqa: E402
from pipeline.config import PipelineConfig, load_config  # noqa: E402
from pipeline.help import help_text  # noqa: E402
from pipeline.provenance import make_provenance  # noqa: E402
from pipeline.read import ShardPlan, plan_shards  # noqa: E402
from pipeline.report import build_stats, summary_table, write_report  # noqa: E402
from pipeline.run import run_local  # noqa: E402
from pipeline.write import is_finished  # noqa: E402
from pipeline.write.store import Store  # noqa: E402
from schemas.files import FILES  # noqa: E402

logger = logging.getLogger("hypergrit")


def main(arguments: Sequence[str]) -> int:
    """Run the job; returns the exit code that --help promises."""
    if "-h" in arguments or "--help" in arguments:
        print(help_text())
        return 0
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    try:
        path = arguments[0] if arguments and "=" not in arguments[0] else None
        run(load_config(path, arguments[1:] if path else arguments))
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
    finished = side_by_side(lambda plan: is_finished(output, plan, provenance), plans)
    return [plan for plan, done in zip(plans, finished, strict=True) if not done]


def runner(config: PipelineConfig) -> Any:
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


def with_absolute_places(config: PipelineConfig) -> PipelineConfig:
    """`config` with input and output independent of the folder a worker happens to run in."""
    if "://" not in config.output and not os.path.isabs(config.output) and "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        raise UserError(
            f"output={config.output} is relative, and a Ray job runs in a temporary copy of the working dir: "
            f"what it wrote there would be lost. Give an absolute path or a URL, such as output=$PWD/{config.output}"
        )
    return dataclasses.replace(config, input=absolute(config.input), output=absolute(config.output))


def absolute(place: str) -> str:
    """A path from the root; a URL as it is, but for slashes at its end: to an object store they are a part of a name."""
    return place.rstrip("/") if "://" in place else os.path.abspath(place)


def refuse_output_in_input(config: PipelineConfig, plans: Sequence[ShardPlan]) -> None:
    """Raise UserError if the output is, or would become, a part of the input: the next run would read its own shards."""
    filesystem, folder = open_store(config.input)
    output_store, output = open_store(config.output)
    inside = f"{output}/".startswith(f"{folder.rstrip('/')}/") and filesystem.isdir(folder)
    own = tuple(f"{place}/{kind}/" for place in (output_store.unstrip_protocol(output), output) for kind in FILES)
    if inside or any(piece.path.startswith(own) for plan in plans for piece in plan.pieces):
        raise UserError(
            f"output {config.output!r} lies within the input {config.input!r}: a second run would read the shards of the first; "
            f"give an output= outside"
        )


def refuse_foreign_shards(store: Store, output: str, n_shards: int) -> None:
    """Raise UserError if `output` holds shards that this run would not make: readers would mix two runs."""
    names = [name for name in store.names("_manifests") if name.endswith(".json")]
    foreign = sorted(name for name in names if int(Path(name).stem) >= n_shards)
    if foreign:
        raise UserError(
            f"{output} holds {len(foreign)} shards beyond this run's {n_shards} (first: {Path(foreign[0]).stem}), "
            f"from an earlier run with more rows or smaller shards; give another output=, or remove that folder"
        )


def check_writable(output: Store) -> None:
    """Raise UserError unless a file can be made in `output`."""
    try:
        output.write(".writable", "")
        output.remove([".writable"])
    except OSError as error:
        raise UserError(
            f"output {output.root!r} is not writable: {error}. Give another output= or mend its permissions."
        ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
