"""Bisection: exactly the faulty rows, few probes, no false accusation."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pipeline.faults import find_faulty


@given(st.integers(1, 200), st.sets(st.integers(0, 199), max_size=5))
def test_exactly_the_faulty_rows_are_found_with_few_probes(n: int, bad: set[int]) -> None:
    bad = {row for row in bad if row < n}
    probes: list[Sequence[int]] = []

    def probe(rows: Sequence[int]) -> str | None:
        probes.append(rows)
        return "bad" if bad & set(rows) else None

    assert find_faulty(range(n), probe) == dict.fromkeys(sorted(bad), "bad")
    assert len(probes) <= 3 + len(bad) * (2 * n.bit_length() + 1)


def test_a_failure_that_happens_once_accuses_no_row() -> None:
    results = iter([None, "half", "single", None])
    assert find_faulty([1, 2, 3, 4], lambda rows: next(results, None)) == {}


def test_rows_that_fail_only_together_are_not_found() -> None:
    assert find_faulty(range(8), lambda rows: "bad" if {1, 6} <= set(rows) else None) == {}


def test_the_search_ends_above_the_limit() -> None:
    n_probes = 0

    def probe(rows: Sequence[int]) -> str:
        nonlocal n_probes
        n_probes += 1
        return "bad"

    assert len(find_faulty(range(10_000), probe, limit=3)) == 4
    assert n_probes < 60
