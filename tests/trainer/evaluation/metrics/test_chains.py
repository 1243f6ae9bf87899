"""Rules of hierarchical matching against closed forms and against plain computations."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.trainer.small import small_model
from trainer.evaluation.metrics.chains import (
    captions_on_path,
    captions_within_radius,
    cone_scores,
    distances_to_root,
    entailment_probability,
    kendall_tau,
    mismatched_rows,
    precision_recall,
)
from trainer.evaluation.metrics.spaces import quantity, root_distances, space_of
from trainer.geometry import lorentz, product
from trainer.models.config import Ranking
from trainer.models.hyperbolic import Hyperbolic
from trainer.models.meru import MERU
from trainer.models.phyclip import PHyCLIP


def test_tau_counts_concordant_minus_discordant_pairs_and_ties_as_zero() -> None:
    values = torch.tensor(
        [[1.0, 2, 3, 4], [4, 3, 2, 1], [7, 7, 7, 7], [1, 1, 2, 3], [1, 3, 2, 4], [float("nan"), 1, 2, 3]]
    )
    assert kendall_tau(values).tolist() == pytest.approx([1, -1, 0, 5 / 6, 4 / 6, 3 / 6])


def test_tau_of_random_orders_is_zero() -> None:
    torch.manual_seed(0)
    assert kendall_tau(torch.rand(20_000, 4)).mean().item() == pytest.approx(0, abs=0.02)


def test_precision_counts_distinct_captions_and_recall_levels() -> None:
    chains = torch.tensor([[0, 1, 2, 3], [4, 4, 5, 6]])
    predicted = torch.tensor([[0, 0, 3, 9, 8], [4, 4, 4, 4, 4]])
    precision, recall = precision_recall(predicted, chains)
    # First image: {0, 3} of {0, 3, 8, 9}, 2 of 4 levels. Second image: {4} of {4}, 2 of 4 levels have the caption 4.
    assert precision == pytest.approx((2 / 4 + 1) / 2)
    assert recall == pytest.approx((2 / 4 + 2 / 4) / 2)


def test_best_caption_within_each_radius_agrees_with_a_search() -> None:
    torch.manual_seed(0)
    scores, radii = torch.randn(7, 40), torch.rand(40)
    found = captions_within_radius(scores, radii, steps=11)
    for step, threshold in enumerate(torch.linspace(radii.min().item(), radii.max().item(), 11).tolist()):
        inside = radii <= threshold + 1e-6
        assert torch.equal(found[:, step], scores.masked_fill(~inside, -torch.inf).argmax(1))


def test_equal_radii_allow_all_captions() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.3]])
    assert captions_within_radius(scores, torch.full((3,), 0.7), steps=4).tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize("name", ["meru", "phyclip"])
@pytest.mark.parametrize("curvature", [1.0, 3.0])
def test_path_is_the_straight_line_in_the_tangent_space(name: str, curvature: float) -> None:
    model = small_model(name, **({"factor_dim": 4} if name == "phyclip" else {})).eval()
    assert isinstance(model, MERU)
    model.curv.data.fill_(math.log(curvature))
    torch.manual_seed(1)
    texts, ends = 4 * torch.randn(60, 16), torch.tensor([5, 9, 5])
    with torch.no_grad():
        points = model.lift_text(texts)
        target = lorentz.log_map0(points, model.curvature())[..., ends, :]
        for step, weight in enumerate(torch.linspace(0, 1, 7).tolist()):
            on_path = lorentz.exp_map0(weight * target, model.curvature())
            nearest = model.scores(on_path, points, "metric").argmax(1)
            assert torch.equal(captions_on_path(model, texts, ends, torch.zeros(16), "metric", 7)[:, step], nearest)


@pytest.mark.parametrize(
    ("name", "ranking"),
    [*((name, "metric") for name in ("clip", "meru", "hycoclip", "phyclip", "poinclip", "atmg")), ("atmg", "released")],
)
def test_path_ends_at_the_caption_also_where_the_similarity_has_roles(name: str, ranking: Ranking) -> None:
    torch.manual_seed(0)
    texts, ends = torch.randn(50, 16), torch.arange(50)
    root = torch.zeros(16) if name != "clip" else F.normalize(texts, dim=-1).mean(0)
    found = captions_on_path(small_model(name).eval(), texts, ends, root, ranking, 5)
    assert torch.equal(found[:, -1], ends)


def test_distances_to_the_root_are_geodesic() -> None:
    texts = torch.randn(20, 16)
    meru = small_model("meru").eval()
    assert isinstance(meru, MERU)
    with torch.no_grad():
        points = meru.lift_text(texts)
        expected = (points.norm(dim=-1) * meru.curvature().sqrt()).asinh() / meru.curvature().sqrt()
    torch.testing.assert_close(distances_to_root(meru, texts, torch.zeros(16)), expected, rtol=1e-4, atol=1e-3)
    phyclip = small_model("phyclip", factor_dim=4).eval()
    assert isinstance(phyclip, PHyCLIP)
    with torch.no_grad():
        factors = phyclip.lift_text(texts).norm(dim=-1).asinh()
        expected = product.combine(factors, phyclip.config.metric)
    torch.testing.assert_close(distances_to_root(phyclip, texts, torch.zeros(16)), expected, rtol=1e-3, atol=1e-2)


def test_distances_to_the_root_are_distances_where_logits_are_not() -> None:
    texts, root = torch.randn(20, 16), torch.zeros(16)
    with torch.no_grad():
        expected = small_model("euclip").lift_text(texts).norm(dim=-1)
    torch.testing.assert_close(distances_to_root(small_model("euclip"), texts, root), expected)
    inner = distances_to_root(small_model("meru", logits="inner"), texts, root)
    torch.testing.assert_close(inner, distances_to_root(small_model("meru"), texts, root))


def test_probability_of_entailment_is_zero_beyond_a_right_angle() -> None:
    angles = torch.tensor([0, math.pi / 4, math.pi / 2, 3.0])
    assert entailment_probability(angles).tolist() == pytest.approx([1, 0.5, 0, 0], abs=1e-6)


def test_cone_scores_of_points_behind_and_opposite_an_apex() -> None:
    model = small_model("meru").eval()
    assert isinstance(model, Hyperbolic)
    direction = F.normalize(torch.randn(16), dim=-1)
    text, images = 4 * direction[None], torch.stack([9 * direction, -9 * direction])
    probability, margin = cone_scores(model, text, images, torch.tensor([[0, 0], [0, 1]]))
    assert probability.tolist() == pytest.approx([1, 0], abs=1e-3)
    assert margin[0] > 0 > margin[1]


@pytest.mark.parametrize("name", ["hycoclip", "phyclip", "poinclip"])
def test_cone_scores_are_one_number_per_pair(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(name).eval()
    assert isinstance(model, Hyperbolic)
    texts, images, rows = torch.randn(9, 16), torch.randn(5, 16), torch.randint(5, (40, 2))
    whole = cone_scores(model, texts, images, rows)
    monkeypatch.setattr("trainer.evaluation.metrics.chains.MAX_NUMBERS", 64)
    parts = cone_scores(model, texts, images, rows)
    assert whole[0].shape == whole[1].shape == (40,)
    torch.testing.assert_close(whole, parts)
    assert torch.equal(whole[0] > 0, whole[0].clamp(0, 1) > 0)


def test_mismatched_captions_are_the_first_ones_or_drawn() -> None:
    first = mismatched_rows([10, 11, 12, 10], 2, seed=None)
    assert first.tolist() == [[11, 0], [12, 0], [10, 1], [12, 1], [10, 2], [11, 2], [11, 3], [12, 3]]
    drawn = mismatched_rows(list(range(50)), 20, seed=3)
    assert torch.equal(drawn, mismatched_rows(list(range(50)), 20, seed=3))
    assert not torch.equal(drawn, mismatched_rows(list(range(50)), 20, seed=4))
    assert len(drawn) == len(drawn.unique(dim=0)) == 1000
    assert (drawn[:, 0] != drawn[:, 1]).all()


@pytest.mark.parametrize(("metric", "combined"), [("l1", "mean"), ("l2", "root mean square")])
def test_the_label_of_a_distance_says_how_the_factors_are_combined(metric: str, combined: str) -> None:
    model = small_model("phyclip", metric=metric)
    assert isinstance(model, PHyCLIP)
    features = torch.randn(5, model.config.embed_dim)
    by_factor = space_of(model).radius(model.lift_text(features))
    expected = by_factor.mean(0) if metric == "l1" else by_factor.square().mean(0).sqrt()
    found = distances_to_root(model, features, torch.zeros(model.config.embed_dim))
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)
    assert quantity(model, in_metric=True) == f"distance to the origin, {combined} over the factors"
    assert torch.equal(root_distances(model, {"text": model.lift_text(features)})["text"], by_factor.sum(0))
    assert quantity(model) == "distance to the origin, sum over the factors"
