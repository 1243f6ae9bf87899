import tracemalloc
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from trainer.data.order import BlockOrder, block_width


def epoch_of(order: BlockOrder, epoch: int) -> NDArray[np.int64]:
    return order.take(epoch * order.n_samples, order.n_samples).samples


@pytest.mark.parametrize(("n", "width", "block"), [
    (1, 4096, 1), (50, 4096, 1), (5000, 4096, 1), (8192, 4096, 2), (9001, 4096, 2), (70_001, 4096, 16),
    (131_071, 6144, 16), (40_000, 5 * 8, 8), (999, 16, 16),
])  # fmt: skip
def test_every_epoch_contains_every_sample_once(n: int, width: int, block: int) -> None:
    order = BlockOrder(n, 3, width)
    assert order.block == block
    for epoch in range(3):
        assert (np.sort(epoch_of(order, epoch)) == np.arange(n)).all()


def test_samples_at_any_positions_equal_those_of_the_enumerated_epochs() -> None:
    order = BlockOrder(9001, 1, 64)
    sequence = np.concatenate([epoch_of(BlockOrder(9001, 1, 64), epoch) for epoch in range(4)])
    for position, n in ((0, 5), (8990, 40), (100, 20_000), (26_999, 1), (3 * 9001 - 1, 2)):
        assert order.take(position, n).samples.tolist() == sequence[position : position + n].tolist()


def test_orders_differ_by_epoch_and_by_seed() -> None:
    orders = [tuple(epoch_of(BlockOrder(100, seed, 32), epoch)) for seed in range(2) for epoch in range(2)]
    assert len(set(orders)) == 4


@pytest.mark.parametrize("n", [20_000, 1_200_000])
def test_a_batch_has_as_many_sources_as_independent_draws(n: int) -> None:
    """340 sources of skewed sizes, each in shards of its own, as in RedCaps."""
    generator = np.random.default_rng(0)
    shares = generator.lognormal(0, 1.2, 340)
    source = np.repeat(np.arange(340), np.maximum(1, n * shares / shares.sum()).astype(int))
    order = BlockOrder(len(source), 0, block_width(2048))
    positions = [0, 2048, *generator.integers(0, 3 * len(source), 20).tolist(), len(source) - 1024]
    found = np.mean([len(set(source[order.take(p, 2048).samples])) for p in positions])
    drawn = np.mean([len(set(source[generator.choice(len(source), 2048, replace=False)])) for _ in positions])
    assert found > 0.97 * drawn


def test_a_batch_has_one_sample_of_each_block_it_reads() -> None:
    order = BlockOrder(2_000_000, 0, block_width(2048))
    for position in (0, 12_345 * 16, 700 * 2048, 1_999_000):
        samples = order.take(position, 2048).samples
        blocks = (samples - order._shift) % order.n_samples // order.block
        assert len(set(blocks)) > 0.98 * 2048  # equal ones only where two epochs meet


def test_samples_ahead_follow_later_in_the_epoch_and_in_the_same_part_of_a_batch() -> None:
    batch, ranks = 256, 4
    order = BlockOrder(80_003, 0, block_width(batch))
    draw = order.take(0, order.n_samples)
    position = np.argsort(draw.samples)
    later = 0
    for start in range(0, order.n_samples, 97):
        for i in range(1, int(draw.ahead[start]) + 1):
            at = int(position[(draw.samples[start] + i) % order.n_samples])
            assert at > start
            assert (at - start) // batch == i * order.width // batch  # always the same loader process
            assert (at % batch) * ranks // batch == (start % batch) * ranks // batch  # and the same rank
            later += 1
    assert later > 4000


def test_a_block_is_read_whole_unless_it_is_open_between_two_epochs() -> None:
    order = BlockOrder(2_000_000, 0, block_width(2048))
    ahead = order.take(0, order.n_samples).ahead
    # Only those that are open where the epoch ends are read in two parts: one here, the other where it begins.
    assert Counter(ahead.tolist())[15] == order.n_blocks - 15 * order.interval > 0.87 * order.n_blocks


def test_seven_hundred_million_samples_take_neither_memory_nor_time() -> None:
    tracemalloc.start()
    order = BlockOrder(700_000_000, 0, block_width(2048))
    samples = order.take(7_123_456_789, 2048).samples
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(set(samples)) == 2048
    assert peak < 2**21


@pytest.mark.parametrize("batch", [1, 7, 48, 96, 256, 768, 1000, 2048, 4096, 32_768])
def test_width_is_a_multiple_of_eight_batches(batch: int) -> None:
    width = block_width(batch)
    assert width % (8 * batch) == 0
    assert 4096 <= width <= max(8192, 8 * batch)


def test_an_order_is_restored_from_its_name() -> None:
    order = BlockOrder(50, 1, 4096)
    restored = BlockOrder(50, 1, 8).named(order.name)
    assert restored == order
    assert restored.take(30, 60).samples.tolist() == order.take(30, 60).samples.tolist()
    names = ("", "blocks", "blocks0", "blocksx", "-4", "4.5", "b-7", "4000")
    assert [order.named(name) for name in names] == [None] * len(names)
