"""Write tests/e2e/recorded.json anew.

python -m tests.e2e.record            all outputs but the demo's, in half a minute
python -m tests.e2e.record --demo     the demo's too, which takes another minute or two
"""

import json
import sys
import tempfile
from pathlib import Path

from tests.e2e.demo_run import run_demo
from tests.e2e.outputs import Outputs
from tests.e2e.recorded import FILE, read_recorded, record_of
from tests.e2e.world import input_rows, serving, write_input


def main() -> int:
    """Make all outputs in a temporary folder, and write their hashes."""
    with tempfile.TemporaryDirectory() as folder, serving() as web:
        record = record_of(Outputs(Path(folder), web, write_input(input_rows())))
        record["demo"] = run_demo(Path(folder) / "demo") if "--demo" in sys.argv else read_recorded()["demo"]
    if record["demo"] is None:
        print("the demo's default port is taken: nothing is written")
        return 1
    FILE.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{sum(map(len, record['outputs'].values()))} hashes in {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
