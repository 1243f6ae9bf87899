"""Print how many lines and branches of the packages have run, in percent."""

import json
from pathlib import Path

REPORT = Path("out/coverage/report.json")  # of `coverage json`

if __name__ == "__main__":
    total = json.loads(REPORT.read_text())["totals"]
    print(f"lines: {total['percent_statements_covered']:.1f} %, branches: {total['percent_branches_covered']:.1f} %")
