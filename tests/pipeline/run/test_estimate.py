"""The estimate of the remaining time, in simulated jobs whose steps take different times."""

import heapq
import random
from collections import deque
from typing import NamedTuple

import pytest

from pipeline.run.progress import LOCAL, ON_RAY, STEPS, TimeLeft

ROWS = 1000


class Report(NamedTuple):
    """An estimate, and the time that really remained."""

    now: float
    left: float
    estimate: float


def simulate(
    n_shards: int, seconds: dict[str, float], sizes: tuple[int, ...], loading: float = 0.0, seed: int = 0
) -> tuple[list[Report], list[tuple[float, float]]]:
    """Run a job with pools of these sizes; return the estimates after each commit, and the fractions done over time.

    A step takes 70 to 130 % of its time; the first of each worker also loads models. Steps near the end come first.
    """
    rng = random.Random(seed)
    pools = ON_RAY if len(sizes) == 2 else LOCAL
    estimate = TimeLeft(n_shards * ROWS, pools)
    waiting = {step: deque[int]() for step in STEPS}
    waiting["prepare"].extend(range(n_shards))
    free, fresh, events = list(sizes), list(sizes), list[tuple[float, int, str, float]]()
    now, found, fractions = 0.0, list[tuple[float, float]](), list[tuple[float, float]]()
    while True:
        for number, steps in enumerate(pools):
            for step in sorted(steps, key=STEPS.index, reverse=True):
                while free[number] and waiting[step]:
                    index, took = waiting[step].popleft(), seconds[step] * rng.uniform(0.7, 1.3)
                    free[number] -= 1
                    loads = fresh[number] and step != "write"
                    load, fresh[number] = (loading, fresh[number] - 1) if loads else (0.0, fresh[number])
                    estimate.begun(now, index, step, ROWS)
                    heapq.heappush(events, (now + load + took, index, step, took))
        if not events:
            break
        now, index, step, took = heapq.heappop(events)
        free[next(i for i, steps in enumerate(pools) if step in steps)] += 1
        estimate.ended(now, index, step, took)
        fractions.append((now, estimate.fraction()))
        if step == "write":
            estimate.finished(index, ROWS)
            remaining = estimate.remaining_s(now)
            assert remaining is not None
            found.append((now, remaining))
        else:
            waiting[STEPS[STEPS.index(step) + 1]].append(index)
    return [Report(at, now - at, remaining) for at, remaining in found], fractions


@pytest.mark.parametrize("sizes", [(1,), (2, 1), (8, 1), (22, 2), (4, 8), (64, 8)])
@pytest.mark.parametrize("slow", STEPS)
@pytest.mark.parametrize("n_shards", [40, 400])
def test_the_first_estimate_is_within_a_factor_of_two(sizes: tuple[int, ...], slow: str, n_shards: int) -> None:
    seconds = {"prepare": 10.0, "infer": 3.0, "write": 1.0} | {slow: 30.0}
    reports, _ = simulate(max(n_shards, 4 * max(sizes)), seconds, sizes, loading=40.0)
    first = reports[0]
    assert first.now < (first.now + first.left) * 0.8  # early enough to be of use
    assert 0.5 < first.estimate / first.left < 2
    middle = reports[len(reports) // 2]
    assert 0.5 < middle.estimate / middle.left < 2


def test_progress_shows_before_the_first_shard_is_finished_and_ends_at_one() -> None:
    reports, fractions = simulate(40, {"prepare": 10.0, "infer": 30.0, "write": 1.0}, (8, 1))
    assert 0 < fractions[0][1] < 0.05
    assert fractions[0][0] < 0.5 * reports[0].now
    assert fractions[-1][1] == pytest.approx(1)
    estimate = TimeLeft(2 * ROWS)
    estimate.begun(0, 0, "prepare", ROWS)
    estimate.ended(5, 0, "prepare")
    assert estimate.fraction() == pytest.approx(1 / 6)
    assert estimate.remaining_s(5) is None  # nothing is known of the other steps


def test_a_shard_that_begins_again_is_not_counted_twice() -> None:
    estimate = TimeLeft(2 * ROWS, ON_RAY)
    for step in ("prepare", "infer"):
        estimate.begun(0, 0, step, ROWS)
        estimate.ended(1, 0, step)
    estimate.begun(1, 0, "write", ROWS)
    estimate.lost(0)
    assert estimate.rows == {"prepare": ROWS, "infer": ROWS}
    estimate.begun(2, 0, "prepare", ROWS)
    assert +estimate.rows == {}
    estimate.finished(0, ROWS)  # failed
    assert estimate.rows == dict.fromkeys(STEPS, ROWS)
    estimate.ended(3, 0, "prepare")  # late
    assert estimate.fraction() == pytest.approx(0.5)


def test_a_pool_that_shrinks_makes_the_estimate_longer() -> None:
    estimate = TimeLeft(100 * ROWS, ON_RAY)
    now = 0.0
    for workers in (4, 1, 1):
        for round_ in range(10):
            now = now if round_ == 0 else now + 20
            for index in range(workers):
                for step in STEPS:
                    estimate.begun(now, index, step, ROWS)
                    estimate.ended(now + 20, index, step, 20)
            for index in range(workers):
                estimate.begun(now, index, "prepare", ROWS)
            for index in range(workers):
                estimate.lost(index)
    assert max(pool.size for pool in estimate.pools) == 1
