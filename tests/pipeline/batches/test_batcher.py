"""Rows that wait for a network until a batch is full."""

from collections.abc import Generator
from typing import Any

import pytest

from pipeline.batches.batcher import Ask, Asked, Batch, Batcher, Row


class Echo:
    """A network that answers with its questions, each batch when `lag` later ones have come."""

    stage = "ground"

    def __init__(self, batch_size: int, lag: int = 0) -> None:
        self.batch_size, self.lag = batch_size, lag
        self.batches: list[list[Any]] = []
        self.pending: list[Batch] = []

    def submit(self, batch: Batch) -> list[tuple[Batch, list[Any]]]:
        self.batches.append([slot.item for slot in batch])
        self.pending.append(batch)
        return self.answer(self.lag)

    def drain(self) -> list[tuple[Batch, list[Any]]]:
        return self.answer(0)

    def answer(self, lag: int) -> list[tuple[Batch, list[Any]]]:
        done, self.pending = self.pending[: len(self.pending) - lag], self.pending[len(self.pending) - lag :]
        return [(batch, [slot.item for slot in batch]) for batch in done]


def start(batcher: Batcher, steps: Generator[Asked, list[Any], Any], results: list[Any]) -> None:
    batcher.add(Row(steps, results.append, lambda stage, seconds: None))


def twice(network: Echo, item: Any, key: Any = None, nbytes: int = 0) -> Generator[Asked, list[Any], Any]:
    """Ask twice, one question after the other."""
    (first,) = yield Asked([Ask(network, key, item)], nbytes)
    (second,) = yield Asked([Ask(network, key, first + 100)], nbytes)
    return second


@pytest.mark.parametrize("lag", [0, 2])
def test_batches_are_full_but_for_the_last_ones_and_every_row_ends(lag: int) -> None:
    network, results = Echo(4, lag), list[int]()
    batcher = Batcher([network])
    for i in range(10):
        start(batcher, twice(network, i), results)
    assert [len(batch) for batch in network.batches] == [4] * len(network.batches)
    batcher.flush()
    assert sorted(results) == [100 + i for i in range(10)]
    assert sum(map(len, network.batches)) == 20
    assert [len(batch) for batch in network.batches[:2]] == [4, 4]
    assert batcher.held == 0


def test_only_items_of_the_same_key_share_a_batch() -> None:
    network, results = Echo(2), list[int]()
    batcher = Batcher([network])
    for i in range(7):
        start(batcher, twice(network, i, key=i % 2), results)
    batcher.flush()
    assert len(results) == 7
    assert all(len({item % 2 for item in batch}) == 1 for batch in network.batches)


def test_equal_shared_items_are_asked_once_before_and_after_their_answer() -> None:
    network, results = Echo(2), list[list[str]]()

    def ask(*items: str) -> Generator[Asked, list[Any], Any]:
        return (yield Asked([Ask(network, None, item, is_shared=True) for item in items], 0))

    batcher = Batcher([network])
    start(batcher, ask("dog", "dog"), results)
    assert not results
    start(batcher, ask("dog", "cat"), results)
    start(batcher, ask("cat", "dog"), results)
    batcher.flush()
    assert network.batches == [["dog", "cat"]]
    assert results == [["dog", "dog"], ["dog", "cat"], ["cat", "dog"]]


def test_beyond_the_limit_of_bytes_the_oldest_batch_does_not_wait_until_it_is_full() -> None:
    network, results, most = Echo(8), list[int](), 0
    batcher = Batcher([network], max_bytes=1000)
    for i in range(40):
        start(batcher, twice(network, i, key=i, nbytes=100), results)  # each in a batch of its own
        most = max(most, batcher.held)
    assert most <= 1000
    assert network.batches[0] == [0]
    assert len(results) > 20


def test_incomplete_batches_of_the_first_network_are_computed_before_those_that_they_fill() -> None:
    first, second, results = Echo(4, lag=1), Echo(4), list[int]()

    def steps(i: int) -> Generator[Asked, list[Any], Any]:
        (a,) = yield Asked([Ask(first, i % 4, i)], 0)
        (b,) = yield Asked([Ask(second, None, a)], 0)
        return b

    batcher = Batcher([first, second])
    for i in range(8):
        start(batcher, steps(i), results)
    batcher.flush()
    assert [len(batch) for batch in first.batches] == [2, 2, 2, 2]
    assert [len(batch) for batch in second.batches] == [4, 4]
    assert batcher.n_items == {"ground": 16}
    assert batcher.n_batches == {"ground": 6}


def test_the_exception_of_a_network_reaches_the_caller() -> None:
    class Broken(Echo):
        def submit(self, batch: Batch) -> list[tuple[Batch, list[Any]]]:
            raise ZeroDivisionError

    batcher = Batcher([network := Broken(1)])
    with pytest.raises(ZeroDivisionError):
        start(batcher, twice(network, 1), [])
