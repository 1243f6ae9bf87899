"""Write stats.json and report.html of finished shards again: `python -m pipeline.report OUTPUT`."""

import argparse
import json
import sys

from common.errors import UserError
from pipeline.report.html import write_report
from pipeline.report.stats import build_stats
from pipeline.report.summary import summary_table
from pipeline.write.store import Store
from schemas.files import REPORT_FILE, STATS_FILE


def main() -> int:
    """Run the command and return its exit code.

    Keeps the `truth` of an existing stats.json, which cannot be computed from the shards.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", help="output folder or URL of the job")
    output = parser.parse_args().output
    try:
        previous = Store(output).read(STATS_FILE)
        stats = build_stats(output, truth=json.loads(previous).get("truth") if previous else None)
        write_report(output)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{summary_table(stats)}\nreport: {output}/{REPORT_FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
