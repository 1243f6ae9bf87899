"""Baselines of the benchmarks of losses and steps: MERU, HyCoCLIP and PHyCLIP as the papers print them.

The losses hold the full similarity matrices in memory, and autograd computes the gradients. They are implemented from
the equations (MERU 4, 9, 10 and 11; HyCoCLIP 5 to 12; PHyCLIP 2 to 6), with eps as in the released code. The towers
are built from standard modules of torch and timm, with one pass per kind of input.
"""

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from trainer.batch import Batch
from trainer.encoders.build import paper_vit
from trainer.encoders.config import PAPER_VITS, ImageConfig, TextConfig
from trainer.geometry import product
from trainer.models.config import ModelConfig, PHyCLIPConfig
from trainer.models.hycoclip import HyCoCLIP
from trainer.models.meru import MERU
from trainer.models.phyclip import PHyCLIP
from trainer.models.registry import MODELS


class PrintedGeometry(MERU):
    """Mix-in that replaces lift, similarity and cones of one of the trainer's models with the printed formulas."""

    def lift(self, features: Tensor, log_alpha: Tensor) -> Tensor:
        c, eps = self.curvature(), self.config.eps
        if isinstance(self.config, PHyCLIPConfig):
            log_alpha = log_alpha[:, None, None]
            features = product.split(features, self.config.factor_dim)
        tangent = log_alpha.exp() * features
        radius = c.sqrt()[..., None] * tangent.norm(dim=-1, keepdim=True)
        return radius.clamp(eps, math.asinh(2**15)).sinh() * tangent / radius.clamp(min=eps)

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        c, eps = self.curvature()[..., None], self.config.eps
        times = [(1 / c + p.square().sum(-1, keepdim=True)).sqrt() for p in (queries, candidates)]
        inner = queries @ candidates.mT - times[0] @ times[1].mT
        distances = torch.acosh((-c * inner).clamp(min=1 + eps)) / c.sqrt()
        if isinstance(self.config, PHyCLIPConfig):
            return -product.combine(distances, self.config.metric)
        return -distances

    def cone(self, general: Tensor, specific: Tensor) -> tuple[Tensor, Tensor]:
        c, eps = self.curvature(), self.config.eps
        norm = general.norm(dim=-1)
        times = [(1 / c + p.square().sum(-1)).sqrt() for p in (general, specific)]
        inner = c * ((general * specific).sum(-1) - times[0] * times[1])
        cosine = (times[1] + times[0] * inner) / (norm * (inner.square() - 1).clamp(min=eps).sqrt() + eps)
        sine = 2 * self.config.min_radius / (c.sqrt() * norm + eps)
        return torch.acos(cosine.clamp(-1 + eps, 1 - eps)), torch.asin(sine.clamp(max=1 - eps))


class PlainMERU(PrintedGeometry):
    """MERU with the printed geometry."""


class PlainHyCoCLIP(PrintedGeometry, HyCoCLIP):
    """HyCoCLIP with the printed geometry."""


class PlainPHyCLIP(PrintedGeometry, PHyCLIP):
    """PHyCLIP with the printed geometry."""


PLAIN: dict[str, type[MERU]] = {"meru": PlainMERU, "hycoclip": PlainHyCoCLIP, "phyclip": PlainPHyCLIP}


def build(name: str, *, plain: bool, full: bool, config: ModelConfig | None = None) -> MERU:
    """Build a model with the papers' sizes, ViT-S/16 and an embedding width of 512, or with those of `config`.

    With `plain`, build the baseline, with full similarity matrices. Without `full`, the towers are minimal, which does
    not affect the losses.
    """
    model_class: Any = MODELS[name].model
    config = MODELS[name].config() if config is None else config
    if not full:
        config = dataclasses.replace(
            config,
            image=ImageConfig(size_px=16, kwargs={"embed_dim": 4, "depth": 1, "num_heads": 1}),
            text=TextConfig(vocab_size=2, context_length=2, width=4, layers=1, heads=1),
        )
    if plain:
        model_class, config = PLAIN[name], dataclasses.replace(config, loss_chunk=None)
    torch.manual_seed(0)
    model: MERU = model_class(config)
    return model


def draw_features(name: str, batch: int) -> dict[str, Tensor]:
    """Return features whose pairs are correlated, so that matching pairs are closer than others, as in training."""
    torch.manual_seed(0)
    common = torch.randn(batch, 512)
    parts = ("image", "text") if name == "meru" else ("image", "text", "box_image", "box_text")
    return {part: common + torch.randn_like(common) for part in parts}


class PlainBlock(nn.Module):
    """A block of CLIP's text transformer with `nn.MultiheadAttention`, which takes the causal mask as a matrix."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        layers = OrderedDict(c_fc=nn.Linear(width, 4 * width), gelu=nn.GELU(), c_proj=nn.Linear(4 * width, width))
        self.mlp = nn.Sequential(layers)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class PlainText(nn.Module):
    """CLIP's text transformer, built from `PlainBlock`s. Maps token ids [b l] to states [b w] of end-of-text tokens."""

    def __init__(
        self, vocab_size: int = 49_408, context: int = 77, width: int = 512, layers: int = 12, heads: int = 8
    ) -> None:
        super().__init__()
        self.token_embed = nn.Embedding(vocab_size, width)
        self.posit_embed = nn.Parameter(0.01 * torch.randn(context, width))
        self.resblocks = nn.ModuleList(PlainBlock(width, heads) for _ in range(layers))
        self.ln_final = nn.LayerNorm(width)
        self.register_buffer("mask", torch.ones(context, context, dtype=torch.bool).triu(1))

    def forward(self, token_ids: Tensor) -> Tensor:
        length = token_ids.shape[1]
        x = self.token_embed(token_ids) + self.posit_embed[:length]
        for block in self.resblocks:
            x = block(x, self.mask[:length, :length])  # type: ignore[index]
        return self.ln_final(x)[torch.arange(len(x)), token_ids.argmax(1)]


def plain_model(name: str, config: ModelConfig | None = None) -> MERU:
    """Build a model with plain towers and plain losses, of the papers' sizes with a ViT-S/16, or those of `config`.

    Images and boxes take separate passes.
    """
    model = build(name, plain=True, full=True, config=config)
    image, text = model.config.image, model.config.text
    vit = paper_vit(image.size_px, **{**PAPER_VITS[image.name], **image.kwargs})
    vit.blocks[-1].forward = partial(Block.forward, vit.blocks[-1])  # type: ignore[arg-type]
    model.visual = vit
    plain_text = PlainText(text.vocab_size, text.context_length, text.width, text.layers, text.heads)
    model.textual = plain_text  # type: ignore[assignment]

    def features(batch: Batch) -> Batch:
        towers: dict[str, Callable[[Tensor], Tensor]] = {"image": model.image_features, "text": model.text_features}
        return batch.with_rows({name: towers[part.side](part.rows) for name, part in batch.streams.items()})

    model.features = features  # type: ignore[assignment, method-assign]
    return model
