"""The choice between the implementations of the contrastive loss."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.losses import chunked
from trainer.losses.contrast import BYTES_PER_SIMILARITY, ContrastiveLoss, chunk_size
from trainer.losses.functional import contrastive
from trainer.losses.similarity import LazySimilarity, cosine_similarity


class Cosine:
    """A model with the cosine as similarity."""

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return queries @ candidates.T

    def lazy_similarity(self, queries: Tensor, candidates: Tensor) -> LazySimilarity | None:
        return cosine_similarity(queries, candidates)


class FullMatrixOnly(Cosine):
    """A model whose similarity has no blockwise formula."""

    def lazy_similarity(self, queries: Tensor, candidates: Tensor) -> None:
        return None


def loss_of(model: Cosine, chunk: int | None = 10) -> ContrastiveLoss:
    return ContrastiveLoss(model=model, chunk=chunk)


def points(n: int) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def function_of(implementation: Any) -> Any:
    return implementation.func if isinstance(implementation, partial) else implementation


def test_chunk_size_selects_the_chunked_loss() -> None:
    selected = loss_of(Cosine()).implementation(points(4), points(4))
    assert function_of(selected.one_way) is chunked.contrastive
    assert function_of(selected.symmetric) is chunked.contrastive


@pytest.mark.parametrize(
    ("loss", "n_queries"),
    [
        (loss_of(Cosine(), chunk=None), 4),
        (loss_of(FullMatrixOnly()), 4),
        (loss_of(Cosine()), 0),
    ],
)
def test_plain_loss_without_chunk_size_or_lazy_similarity_or_queries(loss: ContrastiveLoss, n_queries: int) -> None:
    selected = loss.implementation(points(n_queries), points(4))
    assert selected.symmetric is None
    assert not isinstance(selected.one_way, partial)


@pytest.mark.parametrize("chunk", [None, 10])
def test_loss_without_queries_is_0(chunk: int | None) -> None:
    loss = loss_of(Cosine(), chunk=chunk).one_way(points(0), points(4), torch.tensor(9.0))
    assert loss.item() == 0


@pytest.mark.parametrize("chunk", [None, 10])
def test_symmetric_loss_is_the_mean_of_both_directions(chunk: int | None) -> None:
    image, text, scale = points(4), points(4).flip(0), torch.tensor(9.0, dtype=torch.float64)
    loss = loss_of(Cosine(), chunk=chunk).symmetric(image, text, image, text, scale)
    logits = scale * image @ text.T
    torch.testing.assert_close(loss, (contrastive(logits) + contrastive(logits.T)) / 2)


@pytest.mark.parametrize("chunk", [None, 10])
def test_targets_are_indices_of_candidates_and_default_to_the_same_row(chunk: int | None) -> None:
    queries, candidates, scale = points(4), points(6), torch.tensor(9.0, dtype=torch.float64)
    loss, logits = loss_of(Cosine(), chunk=chunk), scale * queries @ candidates.T
    targets = torch.tensor([5, 0, 2, 2])
    torch.testing.assert_close(loss.one_way(queries, candidates, scale, targets), contrastive(logits, targets=targets))
    torch.testing.assert_close(loss.one_way(queries, candidates, scale), contrastive(logits))


def test_the_chunk_of_a_cpu_is_small_and_that_of_a_gpu_holds_phyclip_at_768(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 7)  # of which each chunk costs hundreds of kernel launches
    properties = SimpleNamespace(total_memory=24 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert chunk_size("auto", torch.device("cpu")) == 2**21
    found = chunk_size("auto", gpu)
    assert found is not None
    assert found >= 64 * 768 * 768
    assert found * BYTES_PER_SIMILARITY <= properties.total_memory / 8
    assert chunk_size(None, gpu) is None
    assert chunk_size(5, gpu) == 5
