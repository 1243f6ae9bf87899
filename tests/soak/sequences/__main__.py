"""Play sequences: python -m tests.soak.sequences [--store] SEED ..., FIRST-LAST, or files of tests/soak/cases/.

With --store, their outputs are in an object store, and disturbances happen at requests.
Prints a line for each that held, and the steps and the error of each that did not; the exit code is the number of these.
"""

import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from tests.soak.sequences.steps import MOST_CALLS, MOST_REQUESTS, Step, from_json, make_steps, to_json
from tests.soak.sequences.store import serving_objects
from tests.soak.sequences.world import World, started


def chosen(names: Sequence[str], calls: Mapping[str, int]) -> Iterator[tuple[str, list[Step]]]:
    """The sequences that arguments name."""
    for name in names:
        if name.endswith(".json"):
            yield name, from_json(Path(name).read_text("utf-8"))
            continue
        first, _, last = name.partition("-")
        for seed in range(int(first), int(last or first) + 1):
            yield str(seed), make_steps(seed, calls)


def main(names: Sequence[str]) -> int:
    """Play the sequences; return the number of those that did not hold."""
    n_failed, is_remote = 0, "--store" in names
    names, calls = [name for name in names if name != "--store"], MOST_REQUESTS if is_remote else MOST_CALLS
    with (
        tempfile.TemporaryDirectory(prefix="sequences-") as folder,
        started(Path(folder)) as base,
        serving_objects() if is_remote else nullcontext() as objects,
    ):
        for number, (name, steps) in enumerate(chosen(names, calls)):
            began, place = time.monotonic(), Path(folder) / f"sequence-{number}"
            world = None
            try:
                base.down.unlink(missing_ok=True)
                world = World(base, place, objects)
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
