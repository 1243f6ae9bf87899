"""Run the scripts in the order of their value, each for its share of the minutes, and print what they found as tables.

    python -m benchmarks.gpu.all [--minutes 9] [--parts steps stages]

Each part is a process of its own, which saves its results in OUT/PART after each measurement. What a part leaves of its
minutes goes to those after it, and a part that fails does not end the others. OUT/all.json has the results of all parts,
and is saved after each of them. The tables are rows for docs/performance.md.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.gpu.session import parser_of

ROOT: Final = Path(__file__).parents[2]
SPARE_S: Final = 30.0  # for a script to start and to save; then it is ended
LEAST_MINUTES: Final = 0.5  # with less, a part is not begun


class Part(NamedTuple):
    """A part of the run."""

    minutes: float  # its share, without what others left
    script: str  # of this package
    options: tuple[str, ...] = ()


STEP: Final = ("--batches", "768", "--sides")
PARTS: Final = {
    "tests": Part(3, "tests"),
    "steps": Part(6, "trainer_step", (*STEP, "ours", "bf16_parameters")),
    "stages": Part(3, "stages", ("--batch", "16")),
    "eager": Part(1.5, "trainer_step", (*STEP, "eager", "plain_compiled")),
    "decode": Part(1, "decode"),
    "glip": Part(3, "glip"),
    "batches": Part(6, "trainer_step", ("--batches", "256", "largest", "--sides", "ours")),
}
"""Name -> part, in the order of value."""
STEP_COLUMNS: Final = {
    "model": "model",
    "side": "side",
    "batch": "pairs",
    "pairs_per_s_with_loader": "pairs/s",
    "step_ms": "ms per step",
    "mfu": "MFU",
    "peak_gib": "GiB",
    "losses_share": "losses",
    "data_wait_share": "waiting for data",
    "first_step_s": "first step, s",
}
STAGE_COLUMNS: Final = {
    "grounder": "grounder",
    "stage": "stage",
    "batch": "images",
    "images_per_s": "images/s",
    "busy": "GPU busy",
    "peak_gib": "GiB",
}
TABLES: Final = {"trainer_step": STEP_COLUMNS, "stages": STAGE_COLUMNS}
"""Script -> key of its rows -> title of the column."""


def main() -> int:
    """Run the command line. Returns the exit code: 1 if a part has no results."""
    parser = parser_of(__doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all of them")
    options = parser.parse_args()
    end, found = time.monotonic() + 60 * options.minutes, dict[str, Any]()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.parts:
        part, left = PARTS[name], (end - time.monotonic()) / 60
        if left < LEAST_MINUTES:
            break
        later = sum(PARTS[other].minutes for other in options.parts[options.parts.index(name) + 1 :])
        found[name] = run_part(part, options, name, min(left, max(part.minutes, left - later)))
        (options.out / "all.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for script, columns in TABLES.items():
        rows = [row for name, results in found.items() if PARTS[name].script == script for row in results["cases"]]
        print("\n".join(table(rows, columns)), flush=True)
    lacking = [name for name in options.parts if not found.get(name, {}).get("cases")]
    print(json.dumps({"name": "gpu_all", "parts": list(found), "without_results": lacking}))
    return bool(lacking)


def run_part(part: Part, options: Any, name: str, minutes: float) -> dict[str, Any]:
    """Run a part in a process of its own, and return its results; without any, what it says of its end."""
    command = [sys.executable, "-m", f"benchmarks.gpu.{part.script}", *part.options, f"--minutes={minutes:.2f}"]
    command += [f"--device={options.device}", f"--out={options.out / name}", *(["--tiny"] if options.tiny else [])]
    print(f"{name}: {minutes:.1f} minutes at most", flush=True)
    try:
        code: int | str = subprocess.run(command, cwd=ROOT, timeout=60 * minutes + SPARE_S).returncode
    except subprocess.TimeoutExpired:
        code = "ended by its limit of time"
    path = options.out / name / f"{part.script}.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"cases": []}
    return results | {"exit": code}


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> list[str]:
    """Return the lines of a Markdown table of the rows that have figures.

    >>> table([{"a": 0.5, "b": 1}, {"b": 2}], {"a": "A", "b": "B"})
    ['| A | B |', '|---|---|', '| 0.5 | 1 |']
    """
    lines = [list(columns.values()), ["---"] * len(columns)]
    lines += [[str(row.get(key, "")) for key in columns] for row in rows if next(iter(columns)) in row]
    return [f"|{'|'.join(line)}|" if line[0] == "---" else f"| {' | '.join(line)} |" for line in lines]


if __name__ == "__main__":
    sys.exit(main())
