import numpy as np
import pytest

from trainer.data.order import Order, epoch_order

COUNTS = (7, 0, 12, 1, 30)


@pytest.mark.parametrize("buffer", [0, 5, 4000])
def test_every_epoch_contains_every_sample_once(buffer: int) -> None:
    for epoch in range(3):
        assert sorted(epoch_order(COUNTS, 3, epoch, buffer)) == list(range(50))


def test_orders_differ_by_epoch_and_by_seed() -> None:
    orders = [tuple(epoch_order(COUNTS, seed, epoch, 10)) for seed in range(2) for epoch in range(2)]
    assert len(set(orders)) == 4


def test_samples_keep_the_order_of_their_shard_without_a_buffer() -> None:
    order = epoch_order((3, 3, 3), 0, 1, 0)
    runs = order.reshape(3, 3)
    assert (np.diff(runs, axis=1) == 1).all()
    assert {tuple(epoch_order((3, 3, 3), 0, epoch, 0)) for epoch in range(20)} > {tuple(range(9))}


def test_no_sample_moves_farther_than_the_buffer() -> None:
    unshuffled, shuffled = epoch_order((500, 500), 0, 0, 0), epoch_order((500, 500), 0, 0, 40)
    moves = np.argsort(shuffled)[unshuffled] - np.arange(1000)
    assert 20 < np.abs(moves).max() <= 40


def test_large_buffer_mixes_shards() -> None:
    first_half = epoch_order((500, 500), 0, 0, 4000)[:500]
    assert 150 < (first_half < 500).sum() < 350


def test_samples_at_any_positions_equal_those_of_the_concatenated_epochs() -> None:
    order = Order(COUNTS, seed=1, buffer=8)
    sequence = np.concatenate([epoch_order(COUNTS, 1, epoch, 8) for epoch in range(4)])
    for position, n in ((0, 5), (48, 7), (10, 130), (149, 1)):
        assert order.take(position, n).tolist() == sequence[position : position + n].tolist()
