from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hypergrit_common.errors import UserError
from tests.trainer.data.loading import assert_batches_equal, keys, resumed, small_loader, take
from tests.trainer.data.samples import train_files, write_shards
from trainer.data.order import PERIOD, BlockOrder, MixtureOrder, quotas

COUNTS = ((40, 60), (1000,), (5, 5))


def order(width: int = 4096, seed: int = 3) -> MixtureOrder:
    return MixtureOrder(COUNTS, (2.0, 1.0, 1.0), seed, width)


@pytest.mark.rest
def test_each_set_gives_its_share_and_follows_its_own_epochs() -> None:
    found = order().take(0, 2 * PERIOD).samples
    edges = np.array([0, 100, 1100, 1110])
    assert np.histogram(found, edges)[0].tolist() == [PERIOD, PERIOD // 2, PERIOD // 2]
    for first, last in pairwise(edges):
        n = last - first
        part = found[(found >= first) & (found < last)] - first
        assert (part == BlockOrder(int(n), 3, 4096).take(0, len(part)).samples).all()
        assert (np.sort(part[:n]) == np.arange(n)).all()


def test_every_batch_has_samples_of_each_set_in_random_places() -> None:
    batches = order().take(0, 100 * 256).samples.reshape(100, 256)
    shares = np.stack([(batches < 100).mean(1), (batches >= 1100).mean(1)])
    assert np.abs(shares - np.array([[0.5], [0.25]])).max() < 0.15
    assert shares.std(1).min() > 0.01


def test_samples_at_any_position_equal_those_of_one_pass_and_differ_by_seed() -> None:
    whole = order().take(0, PERIOD + 3000).samples
    for first, n in ((0, 7), (1105, 20), (PERIOD - 5, 10), (PERIOD + 100, 2000)):
        assert (order().take(first, n).samples == whole[first : first + n]).all()
    assert (order(seed=4).take(0, 100).samples != whole[:100]).any()


def test_quotas_are_exact_and_at_least_one() -> None:
    assert quotas((3, 1)).tolist() == [3 * PERIOD // 4, PERIOD // 4]
    assert quotas((1, 1, 1)).sum() == PERIOD
    assert quotas((1e9, 1)).tolist() == [PERIOD - 1, 1]


def test_an_order_is_restored_from_its_name() -> None:
    wide = order(8192)
    restored = order().named(wide.name)
    assert restored is not None
    assert (restored.take(5, 90).samples == wide.take(5, 90).samples).all()
    assert order().named("blocks4096") is None
    other = MixtureOrder(COUNTS, (1.0, 1.0, 1.0), 3, 4096)
    assert order().named(other.name) is None


@pytest.fixture
def two_sets(tmp_path: Path) -> str:
    write_shards(tmp_path / "b", (8, 8), train_files)
    write_shards(tmp_path / "a", (30,), train_files)
    return f"{tmp_path / 'b'},{tmp_path / 'a'}"


def test_batches_are_a_mixture_that_resumes_and_is_split_over_ranks(two_sets: str) -> None:
    source = small_loader(two_sets, weights=(3.0, 1.0), batch=8)
    batches = take(source, 40)
    assert (source.order.take(0, 320).samples < 16).mean() == pytest.approx(0.75, abs=0.08)
    read = Counter(int(key.rpartition("/")[2]) for key in keys(batches))
    assert sum(n for number, n in read.items() if number >= 16) / 320 == pytest.approx(0.25 * 14 / 30, abs=0.06)
    half, again = (small_loader(two_sets, weights=(3.0, 1.0), batch=8, workers=n) for n in (0, 1))
    assert_batches_equal(take(resumed(half, 25, again), 15), batches[25:])
    parts = [take(small_loader(two_sets, weights=(3.0, 1.0), rank=rank, world_size=2), 5) for rank in (0, 1)]
    assert [key for pair in zip(*parts, strict=True) for key in keys(pair)] == keys(batches[:5])
    other = small_loader(two_sets, weights=(1.0, 1.0), batch=8)
    with pytest.raises(UserError, match="different data"):
        other.load_state_dict(half.state_dict())


def test_a_shard_of_two_sets_is_an_error(two_sets: str) -> None:
    with pytest.raises(UserError, match=r"000\.tar belongs to two of the sets"):
        small_loader(f"{two_sets},{two_sets.partition(',')[0]}", weights=(1.0, 1.0, 1.0))
