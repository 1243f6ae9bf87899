import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.trainer.small import NAMES, small_batch, small_model
from trainer.geometry import lorentz, poincare, product
from trainer.losses import chunked
from trainer.losses import similarity as blocks
from trainer.losses.functional import contrastive

SPACES = ["cosine", "lorentz", "poincare", "factors l1", "factors l2"]
B, N, K, D = 12, 17, 3, 5


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and parts of chunks as small as a test wants them."""
    monkeypatch.setattr(chunked, "ROWS", 1)
    monkeypatch.setattr(blocks, "ROWS", 1)


def draw(space: str, b: int, n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Queries, candidates, scale, curvature, targets. The last query lies on its own candidate, gap below its floor."""
    generator = torch.Generator().manual_seed(0)
    factors = (K,) if space.startswith("factors") else ()
    spread = 0.2 if space == "poincare" else 0.8
    x, y = (spread * torch.randn(*factors, rows, D, generator=generator, dtype=dtype) for rows in (b, n))
    x[..., -1, :] = y[..., min(b, n) - 1, :]
    curvature = torch.tensor([0.3, 1.0, 4.0] if factors else 0.6, dtype=dtype)
    return x, y, torch.tensor(9.0, dtype=dtype), curvature, torch.arange(b) % n


def plain(space: str, x: Tensor, y: Tensor, curvature: Tensor) -> Tensor:
    match space:
        case "cosine":
            return x @ y.T
        case "lorentz":
            return -lorentz.pairwise_distance(x, y, curvature, 1e-6)
        case "poincare":
            return -poincare.pairwise_distance(x, y, curvature, 1e-6)
    metric: Any = space.split()[1]
    return -product.combine(lorentz.pairwise_distance(x, y, curvature[:, None], 1e-6), metric)


def comparison(space: str, x: Tensor, y: Tensor, curvature: Tensor) -> blocks.Comparison:
    match space:
        case "cosine":
            return blocks.cosine(x, y)
        case "lorentz":
            return blocks.lorentz_distance(x, y, curvature, 1e-6)
        case "poincare":
            return blocks.poincare_distance(x, y, curvature, 1e-6)
    metric: Any = space.split()[1]
    return blocks.lorentz_distance(x, y, curvature[:, None], 1e-6, metric)


def learned(*tensors: Tensor) -> list[Tensor]:
    return [tensor.clone().requires_grad_() for tensor in tensors]


def gradients(loss: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(3 * loss, tensors, allow_unused=True)
    return [torch.zeros(()) if gradient is None else gradient for gradient in found]


@pytest.mark.parametrize("rows", [1, 5, B])
@pytest.mark.parametrize("space", SPACES)
def test_loss_and_gradients_of_queries_are_those_of_the_plain_formula(
    space: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "CACHED", 2 * N)  # parts of two rows of a factor
    x, y, scale, curvature, targets = draw(space, B, N)
    first, second = learned(x, y, scale, curvature), learned(x, y, scale, curvature)
    expected = contrastive(first[2] * plain(space, first[0], first[1], first[3]), targets=targets)
    chunk = rows * N * (K if "factors" in space else 1)
    loss = chunked.contrastive(
        comparison(space, second[0], second[1], second[3]), second[2], targets, chunk, torch.float64
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, second), gradients(expected, first))


@pytest.mark.parametrize("rows", [1, 5, B])
@pytest.mark.parametrize("space", SPACES)
def test_both_directions_in_one_walk_are_the_mean_of_two_plain_losses(space: str, rows: int) -> None:
    x, y, scale, curvature, _ = draw(space, B, B)
    first, second = learned(x, y, scale, curvature), learned(x, y, scale, curvature)
    logits = first[2] * plain(space, first[0], first[1], first[3])
    expected = (contrastive(logits) + contrastive(logits.T)) / 2
    chunk = rows * B * (K if "factors" in space else 1)
    loss = chunked.symmetric_contrastive(
        comparison(space, second[0], second[1], second[3]), second[2], chunk, torch.float64
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, second), gradients(expected, first))


@pytest.mark.parametrize("space", SPACES)
def test_gradients_are_those_of_finite_differences(space: str) -> None:
    x, y, scale, curvature, targets = draw(space, 4, 6)
    x[..., -1, :] += 0.3  # away from the floor, where differences see a kink

    def loss(x: Tensor, y: Tensor, scale: Tensor, curvature: Tensor) -> Tensor:
        return chunked.contrastive(comparison(space, x, y, curvature), scale, targets, 20, torch.float64)

    used = learned(x, y, scale, curvature)
    used[3].requires_grad_(space != "cosine")
    assert torch.autograd.gradcheck(loss, used)


@pytest.mark.parametrize("space", SPACES)
def test_single_precision_keeps_six_digits_where_logits_reach_thousands(space: str) -> None:
    x, y, _, curvature, targets = draw(space, B, N)
    scale = torch.tensor(1000.0, dtype=torch.float64)
    exact = learned(x, y)
    expected = contrastive(scale * plain(space, *exact, curvature), targets=targets)
    short = learned(x.float(), y.float())
    loss = chunked.contrastive(comparison(space, *short, curvature.float()), scale.float(), targets, 64)
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6)
    for ours, truth in zip(gradients(loss, short), gradients(expected, exact), strict=True):
        assert (ours - truth).abs().max() < 1e-3 * truth.abs().max()


@pytest.mark.parametrize("space", ["lorentz", "factors l1"])
def test_no_tensor_is_larger_than_the_chunk(space: str) -> None:
    """Of 96 x 96 pairs, a chunk of eight rows."""

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
            self.numel = max([self.numel, *sizes])
            return out

    x, y, scale, curvature, targets = draw(space, 96, 96, torch.float32)
    chunk = 8 * 96 * (K if "factors" in space else 1)
    with Largest() as largest:
        point, *_ = learned(x)
        chunked.contrastive(comparison(space, point, y, curvature), scale, targets, chunk).backward()
        chunked.symmetric_contrastive(comparison(space, point, y, curvature), scale, chunk).backward()
    inputs = x.numel() // D * (D + 2)
    assert largest.numel <= max(chunk, inputs)


def test_without_gradients_the_loss_is_the_same() -> None:
    x, y, scale, curvature, targets = draw("lorentz", B, N)
    queries = comparison("lorentz", x.requires_grad_(), y, curvature)
    with_gradients = chunked.contrastive(queries, scale, targets, 50, torch.float64)
    with torch.no_grad():
        without = chunked.contrastive(queries, scale, targets, 50, torch.float64)
    assert with_gradients.item() == without.item()
    assert not without.requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_model_has_the_gradients_of_its_plain_loss(name: str) -> None:
    results = []
    for loss_chunk in (None, 40):
        model = small_model(name, loss_chunk=loss_chunk).double()
        batch = small_batch()
        assert batch.box_images is not None
        batch = dataclasses.replace(batch, images=batch.images.double(), box_images=batch.box_images.double())
        losses = model.losses(model.features(batch))
        losses.loss.backward()
        results.append({"loss": losses.loss} | {key: p.grad for key, p in model.named_parameters()})
    torch.testing.assert_close(results[1], results[0], atol=1e-9, rtol=1e-7)
