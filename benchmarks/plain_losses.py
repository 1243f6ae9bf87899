"""Baseline of the loss benchmark: MERU, HyCoCLIP and PHyCLIP with the formulas as printed in the papers.

The full similarity matrices are held in memory, and autograd computes the gradients. The formulas are implemented from
the equations (MERU 4, 9, 10 and 11; HyCoCLIP 5 to 12; PHyCLIP 2 to 6), with eps as in the released code.
"""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from trainer.encoders.config import ImageConfig, TextConfig
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
