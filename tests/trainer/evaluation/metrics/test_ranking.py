"""Ranks and nearest candidates: closed forms, ties, blocks, and equality with a full sort."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.trainer.small import small_model
from trainer.evaluation.metrics import ranking
from trainer.evaluation.metrics.ranking import chance_recall, pessimistic_ranks, recall_at, top_k


def dot(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.T


def test_perfect_points_have_rank_0_and_constant_points_the_last() -> None:
    ids = torch.arange(6)
    assert pessimistic_ranks(dot, torch.eye(6), torch.eye(6), ids, ids).tolist() == [0] * 6
    ones = torch.ones(6, 3)
    assert pessimistic_ranks(dot, ones, ones, ids, ids).tolist() == [5] * 6


def test_constant_points_of_an_image_with_five_captions_rank_behind_all_other_captions() -> None:
    owner = torch.arange(4).repeat_interleave(5)
    ranks = pessimistic_ranks(dot, torch.ones(4, 2), torch.ones(20, 2), torch.arange(4), owner)
    assert ranks.tolist() == [15] * 4


def test_ids_and_not_positions_decide_what_is_relevant() -> None:
    queries, candidates = torch.eye(3), torch.eye(3)[[2, 0, 1]]
    ranks = pessimistic_ranks(dot, queries, candidates, torch.tensor([7, 8, 9]), torch.tensor([9, 7, 8]))
    assert ranks.tolist() == [0, 0, 0]


def test_scores_that_are_not_numbers_count_against_the_model() -> None:
    queries = torch.tensor([[math.nan], [1.0]])
    ranks = pessimistic_ranks(dot, queries, torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]), torch.tensor([0, 1]))
    assert ranks.tolist() == [1, 0]


def test_queries_without_a_relevant_candidate_are_ignored() -> None:
    ranks = pessimistic_ranks(dot, torch.eye(2), torch.eye(2), torch.tensor([0, 5]), torch.tensor([0, 1]))
    assert ranks.tolist() == [0, -1]
    assert recall_at(ranks, (1,)) == {1: 1.0}


@pytest.mark.parametrize("at_once", [3, 7, 100])
def test_ranks_equal_those_of_a_full_sort_in_any_blocks(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "BLOCK_NUMBERS", 20)
    generator = torch.Generator().manual_seed(0)
    queries, candidates = (torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in (13, 40))
    query_ids, candidate_ids = torch.arange(13), torch.randint(13, (40,), generator=generator)
    order = dot(queries, candidates).argsort(dim=1, descending=True)
    relevant = (candidate_ids[order] == query_ids[:, None]).int()
    expected = torch.where(relevant.any(1), relevant.argmax(1), -1)
    assert pessimistic_ranks(dot, queries, candidates, query_ids, candidate_ids, at_once).equal(expected)
    scores, indices = top_k(dot, queries, candidates, 5, at_once)
    assert indices.equal(order[:, :5])
    assert scores.allclose(dot(queries, candidates).gather(1, order[:, :5]).float())


@pytest.mark.parametrize("at_once", [2, 5, 100])
def test_the_first_of_equal_candidates_are_nearest(at_once: int) -> None:
    _, indices = top_k(dot, torch.ones(2, 3), torch.ones(9, 3), 4, at_once)
    assert indices.tolist() == [[0, 1, 2, 3]] * 2


def test_recall_counts_queries_with_any_relevant_candidate_among_the_first() -> None:
    queries, candidates = torch.eye(2), torch.tensor([[0.9, 0.9], [0.5, 0.5], [0.1, 0.1]])
    ranks = pessimistic_ranks(dot, queries, candidates, torch.tensor([1, 0]), torch.tensor([0, 1, 1]))
    assert recall_at(ranks, (1, 2, 3)) == {1: 0.5, 2: 1.0, 3: 1.0}


def test_chance_recall_agrees_with_random_rankings() -> None:
    generator = torch.Generator().manual_seed(0)
    is_relevant = torch.rand(20_000, 12, generator=generator).argsort(1) < 3
    drawn = recall_at(is_relevant.int().argmax(1), (1, 4))
    expected = {k: chance_recall(12, torch.tensor([3]), k) for k in (1, 4, 10, 12)}
    assert expected == pytest.approx(drawn | {10: 1.0, 12: 1.0}, abs=0.01)


def test_chance_recalls_are_those_of_the_benchmarks() -> None:
    assert chance_recall(5000, torch.ones(25014, dtype=torch.int64), 5) == pytest.approx(0.001)
    assert chance_recall(25000, torch.full((5000,), 5), 5) == pytest.approx(0.001, rel=1e-3)
    assert chance_recall(5000, torch.full((1000,), 5), 10) == pytest.approx(0.01, rel=1e-2)
    assert chance_recall(3, torch.tensor([2]), 1) == pytest.approx(2 / 3)
    assert chance_recall(3, torch.tensor([1, 0]), 5) == 1.0


@torch.no_grad()
def test_phyclip_ranks_by_its_sum_of_inner_products_or_by_its_distance() -> None:
    """The example of two factors of width 1 for which both rules choose different candidates."""
    model = small_model("phyclip", embed_dim=2, factor_dim=1)
    query = torch.zeros(2, 1, 1)
    candidates = torch.tensor([[[3.0], [1.1]], [[0.0], [1.1]]])  # A = (3, 0), B = (1.1, 1.1)
    released, metric = (model.scores(query, candidates, rule) for rule in ("released", "metric"))
    assert released[0].tolist() == pytest.approx([-math.sqrt(10) - 1, -2 * math.sqrt(1 + 1.1**2)])
    assert (-2 * metric[0]).tolist() == pytest.approx([math.asinh(3), 2 * math.asinh(1.1)], abs=3e-3)
    assert int(released.argmax()) == 1
    assert int(metric.argmax()) == 0


@torch.no_grad()
@pytest.mark.parametrize("name", ["meru", "phyclip"])
def test_scaling_the_curvature_with_the_points_changes_no_rank(name: str) -> None:
    model = small_model(name)
    generator = torch.Generator().manual_seed(1)
    shape = (2, 30, 8) if name == "phyclip" else (30, 16)
    points = torch.randn(shape, generator=generator)
    others = 0.5 * points + torch.randn(shape, generator=generator)
    ids = torch.arange(30)
    first = pessimistic_ranks(partial(model.scores, ranking="metric"), points, others, ids, ids)
    model.curv += math.log(4.0)
    second = pessimistic_ranks(partial(model.scores, ranking="metric"), points / 2, others / 2, ids, ids)
    assert first.equal(second)
    assert len(set(first.tolist())) > 1
