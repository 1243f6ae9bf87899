"""The Triton kernels against the plain formula in float64 and against the chunked loss.

`test_fused.py` runs these tests in a separate process, because Triton selects GPU or interpreter when it is imported.
To run them directly: TRITON_INTERPRET=1 python -m pytest tests/benchmarks/gpu/fused_checks.py
"""

import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.gpu import fused
from tests.trainer.losses.test_chunked import full_similarity, gradients, lazy_similarity, with_grad
from tests.trainer.small import NAMES, small_batch, small_model
from trainer.losses import chunked
from trainer.losses.functional import contrastive

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
SPACES = ["cosine", "lorentz", "poincare", "factors l1", "factors l2"]
# Number of queries, number of candidates, with neighbours among them, tolerance of the gradients. Tiles are 64 x 64.
SIZES = [(1, 1, True, 1e-3), (7, 70, True, 1e-3), (70, 40, False, 1e-5)]
if DEVICE == "cuda":
    SIZES += [(300, 1000, True, 1e-3), (1000, 300, False, 1e-5)]
WIDTHS = {"cosine": 70, "lorentz": 70, "poincare": 9, "factors l1": 8, "factors l2": 5}


@pytest.fixture(autouse=True)
def several_tiles_per_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "MIN_PROGRAMS", 1)


def draw(space: str, b: int, n: int, neighbours: bool = True, scale: float = 9.0) -> list[Tensor]:
    """Queries, candidates, curvature and scale in float64, with values that float32 represents exactly.

    With `neighbours`, the last query equals a candidate and the first is very close to one, so that coshm1 is clamped
    or nearly so. There a gradient in float32 has at most three correct digits, also in the chunked loss.
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
    """Indices of the queries' candidates, as on a rank other than 0."""
    return (torch.arange(b, device=DEVICE) + n // 3) % n


def assert_close(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Assert that tensors are equal up to `tolerance` times their largest entry."""
    for ours, exact in zip(found, expected, strict=True):
        assert ours.isfinite().all()
        assert (ours - exact).abs().max() <= tolerance * exact.abs().max() + 1e-7


@pytest.mark.parametrize(("b", "n", "neighbours", "tolerance"), SIZES)
@pytest.mark.parametrize("space", SPACES)
def test_one_way_loss_and_gradients_match_the_plain_formula(
    space: str, b: int, n: int, neighbours: bool, tolerance: float
) -> None:
    exact = with_grad(*draw(space, b, n, neighbours))
    expected = contrastive(exact[3] * full_similarity(space, *exact[:3]), targets=targets_of(b, n))
    single = with_grad(*(tensor.float() for tensor in exact))
    loss = fused.contrastive(lazy_similarity(space, *single[:3]), single[3], targets_of(b, n))
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6, abs=1e-6)
    assert_close(gradients(loss, single), gradients(expected, exact), tolerance)


@pytest.mark.parametrize(("b", "neighbours", "tolerance"), [(5, True, 1e-3), (70, False, 1e-5)])
@pytest.mark.parametrize("space", SPACES)
def test_symmetric_loss_and_gradients_match_the_mean_of_two_plain_losses(
    space: str, b: int, neighbours: bool, tolerance: float
) -> None:
    exact = with_grad(*draw(space, b, b, neighbours))
    logits = exact[3] * full_similarity(space, *exact[:3])
    expected = (contrastive(logits) + contrastive(logits.T)) / 2
    single = with_grad(*(tensor.float() for tensor in exact))
    loss = fused.contrastive(lazy_similarity(space, *single[:3]), single[3])
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6, abs=1e-6)
    assert_close(gradients(loss, single), gradients(expected, exact), tolerance)


@pytest.mark.parametrize("space", SPACES)
def test_kernels_match_the_chunked_loss_for_logits_in_the_thousands(space: str) -> None:
    results = []
    for is_fused in (True, False):
        x, y, curvature, scale = with_grad(*(tensor.float() for tensor in draw(space, 7, 70, scale=1000.0)))
        lazy, targets = lazy_similarity(space, x, y, curvature), targets_of(7, 70)
        loss = fused.contrastive(lazy, scale, targets) if is_fused else chunked.contrastive(lazy, scale, targets, 2000)
        results.append([loss, *gradients(loss, [x, y, curvature, scale])])
    assert_close(results[0], results[1], 2e-4)


def test_loss_does_not_depend_on_the_number_of_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = []
    for programs in (1, 4):
        monkeypatch.setattr(fused, "MIN_PROGRAMS", programs)
        x, y, curvature, scale = (tensor.float() for tensor in draw("factors l1", 7, 200))
        losses.append(
            fused.contrastive(lazy_similarity("factors l1", x, y, curvature), scale, targets_of(7, 200)).item()
        )
    assert fused.split_columns(7, 200) == (4, 1)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter runs programs in a fixed order")
def test_gradients_have_the_same_bits_in_each_run() -> None:
    def once() -> list[Tensor]:
        single = with_grad(*(tensor.float() for tensor in draw("factors l2", 150, 130)))
        return gradients(
            fused.contrastive(lazy_similarity("factors l2", *single[:3]), single[3], targets_of(150, 130)), single
        )

    assert all(torch.equal(first, second) for first, second in zip(once(), once(), strict=True))


@pytest.mark.parametrize("space", ["cosine", "factors l2"])
def test_nan_coordinate_gives_a_nan_loss(space: str) -> None:
    x, y, curvature, scale = (tensor.float() for tensor in draw(space, 5, 5))
    x[..., 3, 0] = float("nan")
    assert fused.contrastive(lazy_similarity(space, x, y, curvature), scale, targets_of(5, 5)).isnan()


@pytest.mark.parametrize("name", NAMES)
def test_model_gradients_match_those_of_the_chunked_loss(name: str) -> None:
    """The towers run in float64, so that only the loss rounds to float32."""
    batch = small_batch()
    batch = replace(batch, images=batch.images.double(), box_images=batch.box_images.double())
    results: list[dict[str, Any]] = []
    for kernels in (nullcontext, fused.in_losses):
        model = small_model(name).double().to(DEVICE)
        with kernels():
            losses = model(batch.to(DEVICE))
        losses.loss.backward()
        results.append({"loss": losses.loss} | {key: p.grad for key, p in model.named_parameters()})
    torch.testing.assert_close(results[1], results[0], atol=2e-6, rtol=1e-3)


@pytest.mark.skipif(DEVICE == "cpu", reason="measures the memory of a GPU")
def test_memory_grows_with_the_number_of_points_and_not_with_that_of_pairs() -> None:
    """8192 and 16384 pairs in 64 factors of width 8, as in PHyCLIP.

    A similarity matrix of 16384 pairs has 1 GB, the distances in all factors 64 GB.
    """
    peaks = []
    for b in (8192, 16384):
        x, y = (torch.randn(64, b, 8, device=DEVICE, requires_grad=True) for _ in range(2))
        curvature, scale = torch.ones(64, device=DEVICE, requires_grad=True), torch.tensor(14.0, device=DEVICE)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        fused.contrastive(lazy_similarity("factors l1", x, y, curvature), scale).backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 2.2 * peaks[0]
