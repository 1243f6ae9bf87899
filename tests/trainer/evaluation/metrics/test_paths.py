"""Paths to the root and between points, in all spaces; the filter by cones."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.trainer.small import NAMES, small_model
from trainer.evaluation.metrics.paths import distinct, entails_steps, nearest, path_between, path_to_root
from trainer.evaluation.metrics.spaces import (
    Ball,
    Flat,
    Lorentz,
    Sphere,
    WithCones,
    factor_points,
    lorentz_to_ball,
    space_of,
)
from trainer.geometry import lorentz, poincare
from trainer.models.cones import Cones
from trainer.models.dual_encoder import DualEncoder

C = torch.tensor(0.6, dtype=torch.float64)
FACTORS = torch.tensor([[0.5], [2.0]], dtype=torch.float64)
HYPERBOLIC = [name for name in NAMES if name not in ("clip", "euclip")]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SPACES = {
    "lorentz": (Lorentz(C), (1, 5)),
    "product": (Lorentz(FACTORS), (2, 1, 5)),
    "ball": (Ball(C), (1, 5)),
    "isometric ball": (Ball(C, "isometric"), (1, 5)),
    "flat": (Flat(), (1, 5)),
    "sphere": (Sphere(torch.nn.functional.normalize(normal(5, seed=9), dim=-1)), (1, 5)),
}


@pytest.mark.parametrize("name", SPACES)
def test_a_path_to_the_root_has_both_ends_and_approaches_the_root(name: str) -> None:
    space, shape = SPACES[name]
    point = space.exp_map0(normal(*shape))
    path = path_to_root(space, point, 7)
    torch.testing.assert_close(path[..., :1, :], point, rtol=0, atol=1e-7)
    torch.testing.assert_close(path[..., -1:, :], space.root(point), rtol=0, atol=1e-7)
    assert (space.radius(path).diff(dim=-1) < 0).all()


@pytest.mark.parametrize("name", [name for name in SPACES if name != "sphere"])
def test_steps_to_the_origin_have_equal_lengths(name: str) -> None:
    space, shape = SPACES[name]
    lengths = space.radius(path_to_root(space, space.exp_map0(normal(*shape)), 9)).diff(dim=-1)
    torch.testing.assert_close(lengths, lengths[..., :1].expand_as(lengths), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("rule", ["paper", "geodesic"])
def test_a_path_between_points_has_both_ends(name: str, rule: str) -> None:
    space, shape = SPACES[name]
    start, end = (space.exp_map0(normal(*shape, seed=seed)) for seed in (0, 1))
    path = path_between(space, start, end, 6, rule)  # type: ignore[arg-type]
    torch.testing.assert_close(path[..., :1, :], start, rtol=0, atol=1e-7)
    torch.testing.assert_close(path[..., -1:, :], end, rtol=0, atol=1e-7)


def test_the_released_rule_ends_beyond_the_target() -> None:
    space = Lorentz(C)
    start, end = (space.exp_map0(normal(1, 5, seed=seed)) for seed in (0, 1))
    last = path_between(space, start, end, 6, "released")[-1:]
    torch.testing.assert_close(last, space.exp_map0(end))
    assert space.radius(last) > space.radius(end)


@pytest.mark.parametrize("space", [Lorentz(C), Ball(C), Ball(C, "isometric")])
def test_a_geodesic_is_shortest_and_has_steps_of_equal_length(space: Lorentz | Ball) -> None:
    distance = partial(lorentz.distance if isinstance(space, Lorentz) else poincare.distance, curvature=C, eps=1e-16)
    start, end = (space.exp_map0(normal(1, 5, seed=seed)) for seed in (0, 1))
    lengths = {}
    for rule in ("geodesic", "paper"):
        path = path_between(space, start, end, 9, rule)  # type: ignore[arg-type]
        lengths[rule] = distance(path[1:], path[:-1])
    torch.testing.assert_close(lengths["geodesic"], distance(start, end).expand(8) / 8)
    assert lengths["paper"].sum() > lengths["geodesic"].sum() + 1e-3


def test_a_straight_line_through_the_origin_is_a_geodesic() -> None:
    space = Lorentz(C)
    start = space.exp_map0(normal(1, 5))
    paths = [path_between(space, start, -start, 5, rule) for rule in ("paper", "geodesic")]  # type: ignore[arg-type]
    torch.testing.assert_close(*paths)


def test_an_arc_of_a_great_circle_has_equal_angles() -> None:
    space = Sphere(torch.tensor([0.0, 0.0, 1.0]))
    start, end = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    path = path_between(space, start, end, 4, "geodesic")
    angles = torch.atan2(path[:, 1], path[:, 0])
    torch.testing.assert_close(angles, torch.linspace(0, math.pi / 2, 4, dtype=torch.float64))


@pytest.mark.parametrize("name", ["meru", "phyclip", "poinclip", "euclip"])
def test_the_filter_agrees_with_the_cones_of_the_model(name: str) -> None:
    curved = {} if name == "euclip" else {"curv_init": 0.5}
    model = small_model(name, min_radius=0.1 if name in ("meru", "phyclip") else 0.5, **curved)
    assert isinstance(model, Cones)
    texts, steps = model.lift_text(normal(12, 16).float()), model.lift_text(2 * normal(30, 16, seed=1).float())
    steps = torch.cat([steps, model.lift_text(1.5 * (normal(12, 16) + 0.1 * normal(12, 16, seed=2)).float())], -2)
    space = space_of(model)
    assert isinstance(space, WithCones)
    found = entails_steps(space, texts, steps, model.config.min_radius)
    n, s = texts.shape[-2], steps.shape[-2]
    apexes, points = texts.repeat_interleave(s, -2), steps.repeat(*(1 for _ in texts.shape[:-2]), n, 1)
    if name == "poinclip":  # its own cones depend on the entropy of the points
        c = model.get_parameter("curv").exp()
        inside = poincare.exterior_angle(apexes, points, c) <= poincare.half_aperture(
            apexes, c, model.config.min_radius
        )
    else:
        angle, aperture = model.cone(apexes, points)
        inside = angle <= aperture
    expected = (inside if inside.ndim == 1 else inside.all(0)).view(n, s).T
    assert expected.any() and not expected.all()  # noqa: PT018
    assert found.equal(expected)


def score_of(model: DualEncoder) -> partial[Tensor]:
    return partial(model.scores, ranking="released")


@torch.no_grad()
def test_the_nearest_candidate_of_a_path_is_the_point_itself_first_and_the_root_last() -> None:
    model = small_model("meru")
    pool = model.lift_text(3 * normal(9, 16).float())
    path = path_to_root(space_of(model), pool[4:5], 11)
    found = nearest(score_of(model), space_of(model), path, pool).tolist()
    assert (found[0], found[-1]) == (4, 9)
    # A text entails the points behind it, not those between it and the root, which only the root entails.
    filtered = nearest(score_of(model), space_of(model), path, pool, torch.ones(9, dtype=torch.bool)).tolist()
    assert set(filtered[1:]) == {9}


@torch.no_grad()
def test_a_text_on_the_way_to_the_root_is_found_if_its_cone_contains_the_step() -> None:
    model = small_model("meru")
    space = space_of(model)
    image = model.lift_text(4 * normal(1, 16).float())
    text = path_to_root(space, image, 3)[1:2].float()
    found = nearest(score_of(model), space, path_to_root(space, image, 9), text, torch.ones(1, dtype=torch.bool))
    assert distinct(found.tolist()) == [0, 1]
    without = nearest(score_of(model), space, path_to_root(space, image, 9), text, torch.zeros(1, dtype=torch.bool))
    assert distinct(without.tolist()) == [1]


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_candidates_give_the_same_neighbours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(name)
    pool = model.lift_text(normal(40, 16).float())
    pool = torch.cat([pool, pool], -2)  # equal scores: the first one wins
    space = space_of(model, pool.mean(0) if name == "clip" else None)
    path = path_to_root(space, model.lift_image(2 * normal(1, 16, seed=3).float()), 12)
    entail = torch.arange(80) % 3 > 0
    whole = [nearest(score_of(model), space, path, pool, mask) for mask in (None, entail)]
    monkeypatch.setattr("trainer.evaluation.metrics.paths.BLOCK", 12 * 7)
    parts = [nearest(score_of(model), space, path, pool, mask) for mask in (None, entail)]
    assert [found.tolist() for found in parts] == [found.tolist() for found in whole]
    assert set(whole[0].tolist()) <= {*range(40), 80}


@pytest.mark.parametrize("name", HYPERBOLIC)
def test_points_of_factors_keep_scaled_distances_in_the_unit_ball(name: str) -> None:
    model = small_model(name, curv_init=0.5)
    points = model.lift_text(normal(6, 16).float())
    balls = factor_points(model, points)
    assert balls.norm(dim=-1).max() < 1
    inner = torch.cdist(balls, balls).square()
    margins = 1 - balls.square().sum(-1)
    distances = 2 * (inner / (margins[:, :, None] * margins[:, None])).sqrt().asinh()
    expected = -model.similarity(points, points).double() * 0.5**0.5
    torch.testing.assert_close(distances.mean(0), expected, rtol=0, atol=2e-3)


def test_clip_has_no_hyperbolic_space_and_needs_a_center() -> None:
    model = small_model("clip")
    with pytest.raises(ValueError, match="CLIP has no hyperbolic space"):
        factor_points(model, normal(2, 16))
    with pytest.raises(ValueError, match="CLIP has no origin; give its center"):
        space_of(model)


def test_the_map_to_the_ball_halves_the_hyperbolic_angle() -> None:
    point = torch.tensor([[math.sinh(2.0), 0.0]], dtype=torch.float64)
    assert lorentz_to_ball(point, torch.tensor(1.0))[0, 0].item() == pytest.approx(math.tanh(1.0))
