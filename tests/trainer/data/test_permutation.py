import numpy as np
import pytest

from trainer.data.order import Permutation


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 16, 17, 100, 1023, 1024, 1025, 40_000, 99_991])
def test_every_number_has_one_image(n: int) -> None:
    assert sorted(Permutation(n, (1, 2))(np.arange(n))) == list(range(n))


def test_permutations_differ_by_each_part_of_their_entropy() -> None:
    found = {tuple(Permutation(50, (seed, epoch))(np.arange(50))) for seed in range(5) for epoch in range(5)}
    assert len(found) == 25


def test_images_are_those_of_earlier_versions() -> None:
    """A run resumes with another version of numpy or of this file: its order must not change."""
    assert Permutation(10, (0, 0))(np.arange(10)).tolist() == [3, 0, 2, 9, 6, 7, 1, 8, 4, 5]
    assert Permutation(10**9, (3, 5))(np.array([0, 1, 10**9 - 1])).tolist() == [436335206, 848171855, 933593122]


@pytest.mark.parametrize("n", [5, 12])
def test_every_pair_of_neighbours_has_every_pair_of_images_equally_often(n: int) -> None:
    rounds = 6000
    counts = np.zeros((n, n))
    for seed in range(rounds):
        first, second = Permutation(n, (seed,))(np.array([n // 2, n // 2 + 1]))
        counts[first, second] += 1
    expected = rounds / (n * (n - 1))
    assert (counts.diagonal() == 0).all()
    pairs = counts[~np.eye(n, dtype=bool)]
    chi2 = float(((pairs - expected) ** 2 / expected).sum())
    degrees = n * (n - 1) - 1
    assert abs(chi2 - degrees) < 4 * np.sqrt(2 * degrees)


def test_images_of_consecutive_numbers_are_not_correlated() -> None:
    images = Permutation(200_000, (7,))(np.arange(200_000)).astype(float)
    assert abs(np.corrcoef(images[:-1], images[1:])[0, 1]) < 0.01
    assert abs(np.corrcoef(images, np.arange(200_000))[0, 1]) < 0.01


def test_a_permutation_of_a_billion_takes_no_memory_and_no_time() -> None:
    permutation = Permutation(10**9, (0,))
    images = permutation(np.arange(5 * 10**8, 5 * 10**8 + 2048))
    assert len(set(images)) == 2048
    assert permutation.keys.nbytes == 64
