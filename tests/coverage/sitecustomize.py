"""With this folder in PYTHONPATH, workers of Ray save their coverage often: Ray ends them without a chance for it."""

import sys
import threading
import time

import coverage


def save() -> None:
    """Save what has run so far, until the process ends, in at most a tenth of its time: on busy cores, jobs stood still."""
    pause_s = 0.2
    while found := coverage.Coverage.current():
        time.sleep(pause_s)
        start = time.monotonic()
        found.save()
        pause_s = max(0.2, 9 * (time.monotonic() - start))


if any(argument.endswith("default_worker.py") for argument in sys.orig_argv):
    threading.Thread(target=save, daemon=True).start()
