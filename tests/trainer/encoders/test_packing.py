"""Packed texts: the features and the losses of padded ones, with an attention in place of the kernel, which needs a GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from hypergrit_common.errors import UserError
from tests.devices import GPU
from tests.trainer.small_run import run, small_config, small_run
from tests.trainer.training.test_loop import read_metrics
from trainer.data.batch_builder import places_of
from trainer.encoders import text as module
from trainer.encoders.config import TextConfig
from trainer.encoders.text import TextEncoder
from trainer.text.base import pad
from trainer.training import build
from trainer.training.build import check_packing, new_model
from trainer.training.step import compute_gradients

END = 63
TEXTS = [[62, 5, END], [62, 7, 8, 9, 10, 11, END], [62, END], [62, 4, 4, 4, END]]


def block_diagonal(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, *_: Any, window_size: tuple[int, int]) -> Tensor:
    """Causal attention [t h d] within texts, by a mask [t t]."""
    assert window_size == (-1, 0)
    place = torch.arange(len(q))
    text = torch.searchsorted(starts, place, right=True)
    mask = (text[:, None] == text) & (place[:, None] >= place)
    return F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in (q, k, v)), attn_mask=mask).transpose(0, 1)


def encoder() -> TextEncoder:
    torch.manual_seed(0)
    return TextEncoder(TextConfig(vocab_size=END + 1, context_length=8, width=32, layers=2, heads=2))


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_packed_texts_have_the_features_and_gradients_of_padded_ones(
    monkeypatch: pytest.MonkeyPatch, order: slice
) -> None:
    monkeypatch.setattr(module, "varlen_attn", block_diagonal)
    tower, texts = encoder().double(), TEXTS[order]
    ids = pad(texts)
    packed = places_of(texts, ids.shape[1])
    assert ids.flatten()[packed].tolist() == [token for text in texts for token in text]
    padded, found = tower(ids), tower(ids, None, packed)
    torch.testing.assert_close(found, padded, rtol=0, atol=1e-12)
    weights = torch.randn_like(padded)
    gradients = [torch.autograd.grad((out * weights).sum(), list(tower.parameters())) for out in (padded, found)]
    for expected, gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


def test_the_kernel_takes_the_arguments_of_a_tower_on_a_gpu() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode(), sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.no_grad(), torch.device("cuda"):
            found = encoder()(torch.zeros(4, 7, dtype=torch.int64), None, torch.arange(17))
    finally:
        torch.set_default_dtype(torch.float32)
    assert (tuple(found.shape), found.dtype, found.device.type) == ((4, 32), torch.bfloat16, "cuda")


@pytest.mark.parametrize("device", [GPU])
def test_packed_texts_have_the_features_of_padded_ones_on_a_gpu(device: str) -> None:
    tower, ids = encoder().to(device), pad(TEXTS).to(device)
    packed = places_of(TEXTS, ids.shape[1]).to(device)
    with torch.autocast(device, torch.bfloat16):
        padded, found = tower(ids), tower(ids, None, packed)
    torch.testing.assert_close(found, padded, rtol=0, atol=0.1)
    assert torch.cosine_similarity(found, padded).min() > 0.999
    weights = torch.randn_like(padded)
    gradients = [torch.autograd.grad((out * weights).sum(), list(tower.parameters())) for out in (padded, found)]
    expected, gradient = (torch.cat([part.flatten() for part in parts]) for parts in gradients)
    assert torch.cosine_similarity(gradient, expected, dim=0) > 0.999


@pytest.mark.parametrize("boxes", ["all", pytest.param("random", marks=pytest.mark.rest)])
def test_a_run_with_packed_texts_has_the_losses_of_padded_ones_and_no_padding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boxes: str
) -> None:
    monkeypatch.setattr(module, "varlen_attn", block_diagonal)
    monkeypatch.setattr(build, "check_packing", lambda *_: None)
    keys = (f"data.boxes={boxes}", "steps=3", "evaluation.every=0")
    losses = []
    for name in ("false", "true"):
        found = small_run(tmp_path / name, *keys, f"data.pack_texts={name}")
        losses.append(compute_gradients(found, next(iter(found.loader))).loss)
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0)
    assert run(tmp_path / "run", *keys, "data.pack_texts=true") == 0
    assert {row["data/padding_share"] for row in read_metrics(tmp_path / "run") if "data/padding_share" in row} == {0}


@pytest.mark.parametrize(
    ("keys", "device", "precision", "message"),
    [
        ([], "cpu", "bf16", "needs a GPU"),
        ([], "cuda", "fp32", "needs precision=bf16 or fp16"),
        (["micro_batch_size=2"], "cuda", "bf16", "needs micro_batch_size=null"),
        (["model.text.embedding_noise=0.1"], "cuda", "bf16", "needs the papers' text transformer, without noise"),
        (["model_name=syntax_meru"], "cuda", "bf16", "reads no words"),
    ],
)
def test_runs_that_cannot_pack_texts_are_refused(
    tmp_path: Path, keys: list[str], device: str, precision: str, message: str
) -> None:
    config = small_config(tmp_path / "run", "data.pack_texts=true", *keys)
    with pytest.raises(UserError, match=message):
        check_packing(config, new_model(config), torch.device(device), precision)
    if device == "cpu":
        assert run(tmp_path / "run", "data.pack_texts=true") == 2
