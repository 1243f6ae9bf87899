"""Play sequences: python -m tests.soak.sequences SEED ..., FIRST-LAST, or files of tests/soak/cases/.

Prints a line for each that held, and the steps and the error of each that did not; the exit code is the number of these.
"""

import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.soak.sequences.steps import Step, from_json, make_steps, to_json
from tests.soak.sequences.world import World, started


def chosen(names: Sequence[str]) -> Iterator[tuple[str, list[Step]]]:
    """The sequences that arguments name."""
    for name in names:
        if name.endswith(".json"):
            yield name, from_json(Path(name).read_text("utf-8"))
            continue
        first, _, last = name.partition("-")
        for seed in range(int(first), int(last or first) + 1):
            yield str(seed), make_steps(seed)


def main(names: Sequence[str]) -> int:
    """Play the sequences; return the number of those that did not hold."""
    n_failed = 0
    with tempfile.TemporaryDirectory(prefix="sequences-") as folder, started(Path(folder)) as base:
        for name, steps in chosen(names):
            began, place = time.monotonic(), Path(folder) / f"sequence-{name.replace('/', '_')}"
            world = None
            try:
                base.down.unlink(missing_ok=True)
                world = World(base, place)
                world.play(steps)
                print(
                    f"{name}: {len(steps)} steps, {world.n_logs} commands, {time.monotonic() - began:.1f} s", flush=True
                )
            except AssertionError as error:
                n_failed += 1
                print(f"{name} FAILED\n{to_json(steps)}{error}\n{traceback.format_exc(limit=-3)}", flush=True)
            shutil.rmtree(place, ignore_errors=True)
    return min(n_failed, 100)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
