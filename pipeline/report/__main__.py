"""`python -m pipeline.report OUT`: make stats.json and report.html of a finished run anew."""

import argparse
import json
import sys

from common.errors import UserError
from pipeline.report.html import write_report
from pipeline.report.stats import STATS_FILE, build_stats
from pipeline.report.summary import summary_table
from pipeline.write.store import Store


def main() -> int:
    """Command line; returns the exit code. What an earlier stats.json knew of the truth is kept, as it cannot be counted again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", help="the job's output folder or URL")
    output = parser.parse_args().output
    try:
        known = Store(output).read(STATS_FILE)
        stats = build_stats(output, truth=json.loads(known).get("truth") if known else None)
        write_report(output)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{summary_table(stats)}\nreport: {output}/report.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
