"""Distances against those of trees and sets, compared with loops over pairs."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from torch import Tensor

from tests.trainer.small import small_model
from trainer.evaluation.metrics.distances import (
    agreement,
    average_ranks,
    hamming,
    pairwise_distances,
    pearson,
)
from trainer.evaluation.metrics.hierarchy import Tree


def random_distances(n: int, seed: int, width: int = 3) -> Tensor:
    points = torch.randn(n, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.cdist(points, points)


def random_tree(n: int, seed: int) -> Tensor:
    """Edges between the nodes of a random tree."""
    parents = {str(i): str(int(np.random.default_rng([seed, i]).integers(i))) for i in range(1, n)}
    return Tree(parents, tuple(map(str, range(n))), {}).edges()


@pytest.mark.parametrize("seed", range(3))
def test_agreement_equals_loops_over_pairs_and_scipy(seed: int) -> None:
    tree, distances = random_tree(12, seed), random_distances(12, seed)
    pairs = list(combinations(range(12), 2))
    ratios = [(distances[i, j] / tree[i, j]).item() for i, j in pairs]
    scales = np.linspace(0.01, 5, 200_001)
    errors = sum((scales * ratio - 1) ** 2 for ratio in ratios)
    scale = scales[np.argmin(errors)]
    found = agreement(distances, tree)
    assert found["distortion"] == pytest.approx(np.mean([abs(scale * ratio - 1) for ratio in ratios]), abs=1e-4)
    assert found["worst_distortion"] == pytest.approx(max(ratios) / min(ratios))
    sides = [[table[i, j].item() for i, j in pairs] for table in (distances, tree)]
    assert found["pearson"] == pytest.approx(pearsonr(*sides).statistic)
    assert found["spearman"] == pytest.approx(spearmanr(*sides).statistic)


def test_a_scaled_isometry_has_no_distortion_and_a_collapse_has_all() -> None:
    tree = random_tree(10, 1)
    isometric = agreement(0.3 * tree, tree)
    assert isometric == pytest.approx({"distortion": 0, "worst_distortion": 1, "pearson": 1, "spearman": 1}, abs=1e-12)
    collapsed = agreement(torch.zeros(10, 10), tree)
    assert collapsed == {"distortion": 1, "worst_distortion": math.inf, "pearson": 0, "spearman": 0}


def test_equal_sets_count_in_the_correlation_but_have_no_ratio() -> None:
    sets = torch.tensor([[1, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 1]])
    assert hamming(sets).tolist() == [[0, 0, 1, 3], [0, 0, 1, 3], [1, 1, 0, 2], [3, 3, 2, 0]]
    found = agreement(hamming(sets) + 1 - torch.eye(4), hamming(sets))
    assert found["pearson"] == pytest.approx(1)
    assert 0 < found["distortion"] < 1


def test_equal_numbers_share_their_rank_and_constants_do_not_correlate() -> None:
    assert average_ranks(torch.tensor([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1, 3.5, 2]
    assert pearson(torch.ones(2, 4), torch.rand(2, 4)).tolist() == [0, 0]


@pytest.mark.parametrize("name", ["clip", "meru", "phyclip", "poinclip"])
def test_distances_of_points_are_symmetric_and_obey_the_triangle(name: str) -> None:
    model = small_model(name)
    points = model.lift_text(3 * torch.randn(12, 16, generator=torch.Generator().manual_seed(0)))
    distances = pairwise_distances(model, points)
    assert distances.dtype == torch.float64
    assert not distances.diagonal().any()
    assert torch.allclose(distances, distances.T)
    assert (distances[:, None] <= distances[:, :, None] + distances[None] + 1e-3).all()
