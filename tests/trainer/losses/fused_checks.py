"""The Triton kernels against the plain formula in float64 and against the chunked function.

`test_fused.py` runs these tests in a process of their own: Triton decides when it is imported whether a GPU or its
interpreter runs the kernels. By hand: TRITON_INTERPRET=1 python -m pytest tests/trainer/losses/fused_checks.py
"""

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.losses.test_chunked import comparison, gradients, learned, plain
from tests.trainer.small import NAMES, small_batch, small_model
from trainer.losses import chunked, fused
from trainer.losses.functional import contrastive

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
SPACES = ["cosine", "lorentz", "poincare", "factors l1", "factors l2"]
# Queries, candidates, whether there are neighbours among them, and how near the gradients come. Tiles are 64 x 64.
SIZES = [(1, 1, True, 1e-3), (7, 70, True, 1e-3), (70, 40, False, 1e-5)]
if DEVICE == "cuda":
    SIZES += [(300, 1000, True, 1e-3), (1000, 300, False, 1e-5)]
WIDTHS = {"cosine": 70, "lorentz": 70, "poincare": 9, "factors l1": 8, "factors l2": 5}


@pytest.fixture(autouse=True)
def several_tiles_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "PROGRAMS", 1)


def draw(space: str, b: int, n: int, neighbours: bool = True, scale: float = 9.0) -> list[Tensor]:
    """Queries, candidates, curvature, scale in float64, all of them numbers of float32.

    Of neighbours the last query lies on a candidate, the first a hair from one: gaps below and near the floor, where
    float32 has no more than three digits of a gradient, the chunked function's as well.
    """
    generator = torch.Generator().manual_seed(b)
    factors, width = ((2,) if space.startswith("factors") else ()), WIDTHS[space]
    spread = (0.4 if space == "poincare" else 1.2) / width**0.5
    x, y = (spread * torch.randn(*factors, rows, width, generator=generator) for rows in (b, n))
    if neighbours:
        x[..., 0, :] = y[..., n // 2, :] + 1e-3 * x[..., 0, :]
        x[..., -1, :] = y[..., n - 1, :]
    curvature = torch.tensor([0.3, 4.0] if factors else 0.6)
    return [tensor.double().to(DEVICE) for tensor in (x, y, curvature, torch.tensor(scale))]


def targets_of(b: int, n: int) -> Tensor:
    """The candidates of another rank than the first."""
    return (torch.arange(b, device=DEVICE) + n // 3) % n


def assert_near(found: list[Tensor], truth: list[Tensor], within: float) -> None:
    for ours, exact in zip(found, truth, strict=True):
        assert ours.isfinite().all()
        assert (ours - exact).abs().max() <= within * exact.abs().max() + 1e-7


@pytest.mark.parametrize(("b", "n", "neighbours", "within"), SIZES)
@pytest.mark.parametrize("space", SPACES)
def test_loss_and_gradients_of_queries_are_those_of_the_plain_formula(
    space: str, b: int, n: int, neighbours: bool, within: float
) -> None:
    exact = learned(*draw(space, b, n, neighbours))
    expected = contrastive(exact[3] * plain(space, *exact[:3]), targets=targets_of(b, n))
    short = learned(*(tensor.float() for tensor in exact))
    loss = fused.contrastive(comparison(space, *short[:3]), short[3], targets_of(b, n))
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6, abs=1e-6)
    assert_near(gradients(loss, short), gradients(expected, exact), within)


@pytest.mark.parametrize(("b", "neighbours", "within"), [(5, True, 1e-3), (70, False, 1e-5)])
@pytest.mark.parametrize("space", SPACES)
def test_both_directions_are_the_mean_of_two_plain_losses(space: str, b: int, neighbours: bool, within: float) -> None:
    exact = learned(*draw(space, b, b, neighbours))
    logits = exact[3] * plain(space, *exact[:3])
    expected = (contrastive(logits) + contrastive(logits.T)) / 2
    short = learned(*(tensor.float() for tensor in exact))
    loss = fused.symmetric_contrastive(comparison(space, *short[:3]), short[3])
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6, abs=1e-6)
    assert_near(gradients(loss, short), gradients(expected, exact), within)


@pytest.mark.parametrize("space", SPACES)
def test_kernel_and_chunked_function_agree_where_logits_reach_thousands(space: str) -> None:
    results = []
    for kernel in (True, False):
        x, y, curvature, scale = learned(*(tensor.float() for tensor in draw(space, 7, 70, scale=1000.0)))
        pairs, targets = comparison(space, x, y, curvature), targets_of(7, 70)
        loss = fused.contrastive(pairs, scale, targets) if kernel else chunked.contrastive(pairs, scale, targets, 2000)
        results.append([loss, *gradients(loss, [x, y, curvature, scale])])
    assert_near(results[0], results[1], 2e-4)


def test_many_splits_and_few_have_the_same_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = []
    for programs in (1, 4):
        monkeypatch.setattr(fused, "PROGRAMS", programs)
        x, y, curvature, scale = (tensor.float() for tensor in draw("factors l1", 7, 200))
        losses.append(fused.contrastive(comparison("factors l1", x, y, curvature), scale, targets_of(7, 200)).item())
    assert fused.share(7, 200) == (4, 1)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter has no choice of order")
def test_gradients_have_the_same_bits_each_time() -> None:
    def once() -> list[Tensor]:
        short = learned(*(tensor.float() for tensor in draw("factors l2", 150, 130)))
        return gradients(fused.contrastive(comparison("factors l2", *short[:3]), short[3], targets_of(150, 130)), short)

    assert all(torch.equal(first, second) for first, second in zip(once(), once(), strict=True))


@pytest.mark.parametrize("space", ["cosine", "factors l2"])
def test_a_coordinate_that_is_no_number_makes_the_loss_none(space: str) -> None:
    x, y, curvature, scale = (tensor.float() for tensor in draw(space, 5, 5))
    x[..., 3, 0] = float("nan")
    assert fused.contrastive(comparison(space, x, y, curvature), scale, targets_of(5, 5)).isnan()


@pytest.mark.parametrize("name", NAMES)
def test_model_has_the_gradients_of_its_chunked_loss(name: str) -> None:
    results: list[dict[str, Any]] = []
    for kernel in ("chunked", "triton"):
        model = small_model(name, loss_kernel=kernel).to(DEVICE)
        losses = model(small_batch().to(DEVICE))
        losses.loss.backward()
        results.append({"loss": losses.loss} | {key: p.grad for key, p in model.named_parameters()})
    torch.testing.assert_close(results[1], results[0], atol=2e-6, rtol=1e-3)


@pytest.mark.skipif(DEVICE == "cpu", reason="measures memory of a GPU")
def test_memory_grows_with_the_points_and_not_with_their_pairs() -> None:
    """PHyCLIP's 64 factors of 8, 8192 and 16384 pairs. One matrix of similarities would be 1 GB, all factors' 64 GB."""
    peaks = []
    for b in (8192, 16384):
        x, y = (torch.randn(64, b, 8, device=DEVICE, requires_grad=True) for _ in range(2))
        curvature, scale = torch.ones(64, device=DEVICE, requires_grad=True), torch.tensor(14.0, device=DEVICE)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        fused.symmetric_contrastive(comparison("factors l1", x, y, curvature), scale).backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 2.2 * peaks[0]
