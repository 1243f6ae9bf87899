"""The verb `explore`: look at a finished output, in a browser, as a report, or one row on the terminal."""

import asyncio
import json
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from hypergrit_common.cli import EXIT_CODES, command, set_up_logging
from hypergrit_common.config_help import describe, help_topic, print_lines, print_text
from hypergrit_common.errors import UserError
from hypergrit_common.paths import absolute
from hypergrit_common.text import one_line
from hypergrit_common.urls import check_no_user
from pipeline.commands.frame import is_option, take_options
from pipeline.explore.config import ExploreOptions
from pipeline.output.lock import fence
from pipeline.output.manifest import fits
from pipeline.output.store import Store, check_outside_outputs
from pipeline.output.takedowns import check_unchanged
from schemas.files import REPORT_FILE, STATS_FILE

logger = logging.getLogger("hypergrit")

USAGE: Final = f"""\
usage: hypergrit explore OUT [key=value ...]

Serves a page with all rows of an output: pictures with boxes, dependency trees and scores; filters and search; a
preview of other thresholds with the command that applies them; marks of boxes for `hypergrit quality`. The shards are
not changed.

  hypergrit explore out/demo                               the page of an output
  hypergrit explore out/demo disk=[disk.json]              with the points of a trained model in the Poincaré disk
  hypergrit explore out/demo row=000000000017              one row from input to output, on the terminal; also row=URL
  hypergrit explore out/demo report=true                   write report.html and stats.json again
  hypergrit explore s3://data/coyo static=page images=5000 the page as files, for any file server

  OUT                  output folder or URL of a job, with arrow/; for pictures also grit/ or write.image_bytes=true

{EXIT_CODES}
"""


@command("run the same command again")
def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if (topic := help_topic(arguments or ["--help"])) is not None:
        print_text(describe(USAGE, ExploreOptions, topic=topic))
        return 0 if arguments else 2
    set_up_logging()
    names = [item for item in arguments if not is_option(item)]
    options, _ = take_options([item for item in arguments if is_option(item)], ExploreOptions, alone=True)
    if len(names) != 1:
        raise UserError(f"{len(names)} outputs are given; give one: hypergrit explore OUT")
    (name,) = names
    check_no_user("OUT", name)
    check_outside_outputs(static=options.static, marks=options.marks, cache=options.cache)
    if options.report:
        write_report_again(absolute(name))
    elif options.row:
        from pipeline.explore.index import open_output
        from pipeline.explore.rows import describe_rows

        print_lines(describe_rows(*open_output(absolute(name)), options.row))
    else:
        explore(name, options)
    return 0


def explore(name: str, options: ExploreOptions) -> None:
    """Serve the page of an output, or write it into a folder."""
    from pipeline.explore.server import serve
    from pipeline.explore.site import read_output, write_static

    output = read_output(name, options.cache)
    if options.static:
        write_static(output, options)
        print_text(f"{options.static}/index.html: open it through a file server, such as "
                   f"python -m http.server --directory {options.static} --bind 127.0.0.1")  # fmt: skip
        return
    try:
        asyncio.run(serve(output, options))
    except KeyboardInterrupt:
        print_text("stopped")


def write_report_again(output: str) -> None:
    """Write stats.json and report.html of finished shards again, and print the summary.

    Keeps the `truth` of a stats.json of the demo, which cannot be computed from the shards. Raises UserError if rows are
    taken down meanwhile, which the report could show, and like `build_stats`.
    """
    from pipeline.report.html import make_report, saved_settings
    from pipeline.report.stats import build_stats
    from pipeline.report.summary import summary_table

    store = Store(output)
    check_unchanged(store)
    store.fence = partial(fence, store, partial(check_unchanged, store))
    stats = build_stats(store, truth=read_truth(output))
    make_report(store, stats, saved_settings(stats))
    print_text(f"{summary_table(stats)}\nreport: {output}/{REPORT_FILE}")


def is_truth(value: Any) -> bool:
    """Return True for nested objects of numbers."""
    return isinstance(value, dict) and all(fits(item, float) or is_truth(item) for item in value.values())


def read_truth(output: str) -> dict[str, Any] | None:
    """Return the `truth` of an existing stats.json; None, with a warning, if the file is damaged."""
    previous = Store(output).read(STATS_FILE)
    try:
        truth = json.loads(previous).get("truth") if previous else None
        if truth is not None and not is_truth(truth):
            raise ValueError("truth holds something else than numbers")
        return truth
    except (ValueError, AttributeError, RecursionError) as error:
        logger.warning(
            "%s/%s is damaged (%s), and is written again; a truth that it held is lost",
            output,
            STATS_FILE,
            one_line(error),
        )
        return None
