"""Write stats.json and report.html of finished shards again: `python -m pipeline.report OUTPUT`."""

import argparse
import json
import sys
from typing import Any

from common.cli import EXIT_CODES, command, set_up_logging
from common.config_help import print_text
from common.errors import UserError
from common.text import one_line
from pipeline.report.html import write_report
from pipeline.report.stats import build_stats
from pipeline.report.summary import summary_table
from pipeline.write.pending import check_nothing_pending
from pipeline.write.store import Store
from schemas.files import REPORT_FILE, STATS_FILE


@command("run the same command again")
def main() -> int:
    """Run the command and return its exit code.

    Keeps the `truth` of an existing stats.json, which cannot be computed from the shards.
    """
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXIT_CODES)
    parser.add_argument("output", help="output folder or URL of the job")
    output = parser.parse_args().output
    set_up_logging()
    check_nothing_pending(Store(output))
    stats = build_stats(output, truth=read_truth(output))
    write_report(output)
    print_text(f"{summary_table(stats)}\nreport: {output}/{REPORT_FILE}")
    return 0


def read_truth(output: str) -> dict[str, Any] | None:
    """Return the `truth` of an existing stats.json. Raises UserError if the file is damaged."""
    previous = Store(output).read(STATS_FILE)
    try:
        return json.loads(previous).get("truth") if previous else None
    except (ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"{output}/{STATS_FILE} is damaged: {one_line(error)}; delete it and run this again") from error


if __name__ == "__main__":
    sys.exit(main())
