"""The chunked contrastive loss against the plain formula: values, gradients and memory."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.trainer.small import NAMES, in_double, small_batch, small_model
from trainer.geometry import lorentz, poincare, product
from trainer.losses import chunked, similarity
from trainer.losses.functional import contrastive

SPACES = ["cosine", "lorentz", "poincare", "factors l1", "factors l2"]
B, N, K, D = 12, 17, 3, 5


@pytest.fixture(autouse=True)
def no_minimum_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow chunks of a single row, so that small inputs have several of them."""
    monkeypatch.setattr(chunked, "MIN_CHUNK_ROWS", 1)


def draw(space: str, b: int, n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Queries, candidates, scale, curvature and targets. The last query equals its candidate: coshm1 is clamped."""
    generator = torch.Generator().manual_seed(0)
    factors = (K,) if space.startswith("factors") else ()
    spread = 0.2 if space == "poincare" else 0.8
    x, y = (spread * torch.randn(*factors, rows, D, generator=generator, dtype=dtype) for rows in (b, n))
    x[..., -1, :] = y[..., min(b, n) - 1, :]
    curvature = torch.tensor([0.3, 1.0, 4.0] if factors else 0.6, dtype=dtype)
    return x, y, torch.tensor(9.0, dtype=dtype), curvature, torch.arange(b) % n


def full_similarity(space: str, x: Tensor, y: Tensor, curvature: Tensor) -> Tensor:
    match space:
        case "cosine":
            return x @ y.T
        case "lorentz":
            return -lorentz.pairwise_distance(x, y, curvature, 1e-6)
        case "poincare":
            return -poincare.pairwise_distance(x, y, curvature, 1e-6)
    metric: Any = space.split()[1]
    return -product.combine(lorentz.pairwise_distance(x, y, curvature[:, None], 1e-6), metric)


def lazy_similarity(space: str, x: Tensor, y: Tensor, curvature: Tensor) -> similarity.LazySimilarity:
    match space:
        case "cosine":
            return similarity.cosine_similarity(x, y)
        case "lorentz":
            return similarity.lorentz_similarity(x, y, curvature, 1e-6)
        case "poincare":
            return similarity.poincare_similarity(x, y, curvature, 1e-6)
    metric: Any = space.split()[1]
    return similarity.lorentz_similarity(x, y, curvature[:, None], 1e-6, metric)


def with_grad(*tensors: Tensor) -> list[Tensor]:
    """Copies that require gradients."""
    return [tensor.clone().requires_grad_() for tensor in tensors]


def gradients(loss: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Gradients of 3 * loss, to test that the backward pass scales them; 0 for tensors that the loss does not use."""
    found = torch.autograd.grad(3 * loss, tensors, allow_unused=True)
    return [torch.zeros(()) if gradient is None else gradient for gradient in found]


@pytest.mark.parametrize("rows", [1, 5, B])
@pytest.mark.parametrize("space", SPACES)
def test_one_way_loss_and_gradients_match_the_plain_formula(
    space: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(similarity, "CACHE_NUMBERS", 2 * N)  # tiles of two rows of one factor
    x, y, scale, curvature, targets = draw(space, B, N)
    plain, ours = with_grad(x, y, scale, curvature), with_grad(x, y, scale, curvature)
    expected = contrastive(plain[2] * full_similarity(space, plain[0], plain[1], plain[3]), targets=targets)
    chunk = rows * N * (K if "factors" in space else 1)
    loss = chunked.contrastive(
        lazy_similarity(space, ours[0], ours[1], ours[3]), ours[2], targets, chunk, torch.float64
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, ours), gradients(expected, plain))


@pytest.mark.parametrize("rows", [1, 5, B])
@pytest.mark.parametrize("space", SPACES)
def test_symmetric_loss_and_gradients_match_the_mean_of_two_plain_losses(space: str, rows: int) -> None:
    x, y, scale, curvature, _ = draw(space, B, B)
    plain, ours = with_grad(x, y, scale, curvature), with_grad(x, y, scale, curvature)
    logits = plain[2] * full_similarity(space, plain[0], plain[1], plain[3])
    expected = (contrastive(logits) + contrastive(logits.T)) / 2
    chunk = rows * B * (K if "factors" in space else 1)
    loss = chunked.contrastive(lazy_similarity(space, ours[0], ours[1], ours[3]), ours[2], None, chunk, torch.float64)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, ours), gradients(expected, plain))


@pytest.mark.parametrize("rows", [1, 5, B])
@pytest.mark.parametrize("space", ["cosine", "lorentz", "factors l2"])
def test_each_query_may_have_a_scale_and_each_candidate_a_weight(space: str, rows: int) -> None:
    x, y, _, curvature, targets = draw(space, B, N)
    scales = torch.linspace(3, 12, B, dtype=torch.float64)
    bias = torch.arange(N, dtype=torch.float64).log()  # the first candidate has weight 0
    targets = targets.clamp(min=1)
    plain, ours = with_grad(x, y, scales, curvature), with_grad(x, y, scales, curvature)
    logits = plain[2][:, None] * full_similarity(space, plain[0], plain[1], plain[3]) + bias
    expected = contrastive(logits, targets=targets)
    similarity_of = lazy_similarity(space, ours[0], ours[1], ours[3])
    chunk = rows * N * (K if "factors" in space else 1)
    loss = chunked.contrastive(similarity_of, ours[2], targets, chunk, torch.float64, bias=bias)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, ours), gradients(expected, plain))


@pytest.mark.parametrize("space", SPACES)
def test_gradients_match_finite_differences(space: str) -> None:
    x, y, scale, curvature, targets = draw(space, 4, 6)
    x[..., -1, :] += 0.3  # coshm1 is not differentiable where it is clamped

    def loss(x: Tensor, y: Tensor, scale: Tensor, curvature: Tensor) -> Tensor:
        return chunked.contrastive(lazy_similarity(space, x, y, curvature), scale, targets, 20, torch.float64)

    inputs = with_grad(x, y, scale, curvature)
    inputs[3].requires_grad_(space != "cosine")
    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize("space", SPACES)
def test_float32_loss_has_six_digits_for_logits_in_the_thousands(space: str) -> None:
    x, y, _, curvature, targets = draw(space, B, N)
    scale = torch.tensor(1000.0, dtype=torch.float64)
    exact = with_grad(x, y)
    expected = contrastive(scale * full_similarity(space, *exact, curvature), targets=targets)
    single = with_grad(x.float(), y.float())
    loss = chunked.contrastive(lazy_similarity(space, *single, curvature.float()), scale.float(), targets, 64)
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6)
    for ours, truth in zip(gradients(loss, single), gradients(expected, exact), strict=True):
        assert (ours - truth).abs().max() < 1e-3 * truth.abs().max()


class LiveMemory(TorchDispatchMode):
    """Tracks the tensors that operations create: the largest, and the peak of the bytes alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.largest, storage = max(self.largest, leaf.numel()), leaf.untyped_storage()
                self.storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.storages = {key: entry for key, entry in self.storages.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.storages.values()))
        return out


@pytest.mark.parametrize("space", ["lorentz", "factors l1"])
def test_no_tensor_is_larger_than_the_chunk(space: str) -> None:
    """The loss of 96 x 96 pairs, in chunks of eight rows."""

    x, y, scale, curvature, targets = draw(space, 96, 96, torch.float32)
    chunk = 8 * 96 * (K if "factors" in space else 1)
    with LiveMemory() as memory:
        queries, *_ = with_grad(x)
        chunked.contrastive(lazy_similarity(space, queries, y, curvature), scale, targets, chunk).backward()
        chunked.contrastive(lazy_similarity(space, queries, y, curvature), scale, None, chunk).backward()
    coordinates = x.numel() // D * (D + 2)
    assert memory.largest <= max(chunk, coordinates)


@pytest.mark.parametrize("is_symmetric", [False, True])
def test_memory_of_a_loss_in_chunks_is_less_than_that_of_the_similarity_matrix(is_symmetric: bool) -> None:
    x, y, scale, curvature, targets = draw("lorentz", 512, 512, torch.float32)
    (queries,), chunk = with_grad(x), 8 * 512
    with LiveMemory() as memory:
        lazy = lazy_similarity("lorentz", queries, y, curvature)
        if is_symmetric:
            chunked.contrastive(lazy, scale, None, chunk).backward()
        else:
            chunked.contrastive(lazy, scale, targets, chunk).backward()
    assert memory.peak < 512 * 512 * 4 / 2


def test_loss_without_gradients_is_the_same() -> None:
    x, y, scale, curvature, targets = draw("lorentz", B, N)
    lazy = lazy_similarity("lorentz", x.requires_grad_(), y, curvature)
    with_gradients = chunked.contrastive(lazy, scale, targets, 50, torch.float64)
    with torch.no_grad():
        without = chunked.contrastive(lazy, scale, targets, 50, torch.float64)
    assert with_gradients.item() == without.item()
    assert not without.requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_model_gradients_match_those_of_the_plain_loss(name: str) -> None:
    results = []
    for loss_chunk in (None, 40):
        model = small_model(name, loss_chunk=loss_chunk).double()
        batch = in_double(small_batch())
        losses = model.losses(model.features(batch))
        losses.loss.backward()
        results.append({"loss": losses.loss} | {key: p.grad for key, p in model.named_parameters()})
    torch.testing.assert_close(results[1], results[0], atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("radius", [1e-3, 1.0, 8.0], ids=["near the origin", "middle", "far"])
@pytest.mark.parametrize("n_close", [0, 3, 40], ids=["no pair", "few pairs", "all pairs"])
def test_float32_distances_of_wide_points_have_five_digits_also_of_close_points(radius: float, n_close: int) -> None:
    """Points of width 64, the first at distances of 1/1000 of their radius from each other."""
    generator = torch.Generator().manual_seed(0)
    tangent = torch.randn(1, 40, similarity.MIN_FLOAT32_WIDTH, generator=generator)
    tangent[:, :n_close] = tangent[:, :1] + 1e-3 * tangent[:, :n_close]
    points = lorentz.exp_map0(radius * tangent / tangent.norm(dim=-1, keepdim=True), torch.ones(1, 1))
    curvature = torch.tensor([1.7])
    lazy = similarity.lorentz_similarity(points, points.flip(1), curvature[:, None], 1e-12)
    found = -lazy.row_blocks(40, torch.float32).forward(slice(0, 40))
    exact = lorentz.pairwise_distance(points.double(), points.flip(1).double(), curvature.double()[:, None], 1e-12)[0]
    is_distinct = exact > 1e-5 * radius
    assert is_distinct.sum() >= 40 * 39
    torch.testing.assert_close(found[is_distinct].double(), exact[is_distinct], rtol=1e-5, atol=0)
