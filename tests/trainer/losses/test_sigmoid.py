"""The sigmoid loss against its formula, in chunks and in a model."""

import pytest
import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.small import overfit, small_batch, small_model
from trainer.losses.sigmoid import sigmoid_contrastive
from trainer.models.config import TaxonomyConfig


def product(queries: Tensor, candidates: Tensor) -> Tensor:
    return queries @ candidates.mT


@pytest.mark.parametrize("chunk", [None, 14, 1])
def test_the_loss_is_that_of_each_pair_with_and_without_chunks(chunk: int | None) -> None:
    generator = torch.manual_seed(0)
    queries, candidates = (torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in (5, 7))
    scale, bias = torch.tensor([2.0, 3, 1, 1, 2], dtype=torch.float64), torch.tensor(-1.5, dtype=torch.float64)
    targets, copies = torch.tensor([0, 0, 3, 6, 5]), torch.tensor([2.0, 0, 1, 1, 0, 1, 1], dtype=torch.float64)
    inputs = [value.requires_grad_() for value in (queries, candidates, scale, bias)]
    found = sigmoid_contrastive(product, queries, candidates, scale, bias, targets, copies, chunk)
    rows = []
    for i, target in enumerate(targets.tolist()):
        logits = scale[i] * candidates @ queries[i] + bias
        signs = [(-1.0, j) for j in range(7) for _ in range(int(copies[j]))]
        signs[signs.index((-1.0, target))] = (1.0, target)
        rows.append(-sum(torch.log(torch.sigmoid(sign * logits[j])) for sign, j in signs))
    expected = torch.stack(rows).mean()  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(*(torch.autograd.grad(loss, inputs) for loss in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_chunks_keep_no_matrix_of_all_pairs_for_the_backward_pass() -> None:
    points, saved = torch.randn(64, 4, requires_grad=True), list[int]()
    scale = torch.ones((), requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda value: saved.append(value.numel()) or value, lambda value: value
    ):
        sigmoid_contrastive(product, points, points.detach(), scale, torch.zeros(()), torch.arange(64), chunk=128)
    assert max(saved) < 64 * 64


@pytest.mark.parametrize("name", ["clip", "argent", "hycoclip"])
def test_a_model_learns_by_the_sigmoid_loss_with_its_bias(name: str) -> None:
    model, batch = small_model(name, contrastive="sigmoid"), small_batch()
    before = model(batch)
    after = overfit(model, batch)
    assert after.terms["contrastive"] < before.terms["contrastive"] / 2
    assert after.terms["logit_bias"] != -10


def test_a_model_without_contrasts_of_pairs_refuses_it() -> None:
    with pytest.raises(UserError, match="contrastive=sigmoid"):
        TaxonomyConfig(contrastive="sigmoid")
