"""Time calls that take turns, so that other load affects all of them equally; on one core."""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Seconds(NamedTuple):
    """Medians of one call."""

    cpu: float
    wall: float


def take_turns(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Seconds]:
    """Return the median CPU and wall-clock seconds of each call over `rounds`, after a warm-up round."""
    times: dict[str, list[Seconds]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            start, start_cpu = time.perf_counter(), time.process_time()
            call()
            times[name].append(Seconds(time.process_time() - start_cpu, time.perf_counter() - start))
    return {name: Seconds(*map(statistics.median, zip(*found[1:], strict=True))) for name, found in times.items()}


def use_one_core() -> None:
    """Keep this process on one core, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
