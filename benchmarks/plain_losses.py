"""The box models with their losses as printed, for comparison: every matrix whole, gradients by autograd.

Written from the equations (MERU 4, 9, 10, 11; HyCoCLIP 5 to 12; PHyCLIP 2 to 6), with eps where the released codes have it.
"""

import dataclasses
import math

import torch
from torch import Tensor

from trainer.encoders.config import ImageConfig, TextConfig
from trainer.geometry import product
from trainer.models.config import ModelConfig, PHyCLIPConfig
from trainer.models.hycoclip import HyCoCLIP
from trainer.models.meru import MERU
from trainer.models.phyclip import PHyCLIP
from trainer.models.registry import MODELS


class Printed:
    """Geometry as printed; first among the bases of a model of the trainer."""

    def lift(self: MERU, features: Tensor, log_alpha: Tensor) -> Tensor:
        c, eps = self.curvature(), self.config.eps
        if isinstance(self.config, PHyCLIPConfig):
            log_alpha = log_alpha[:, None, None]
            features = product.split(features, self.config.factor_dim)
        tangent = log_alpha.exp() * features
        radius = c.sqrt()[..., None] * tangent.norm(dim=-1, keepdim=True)
        return radius.clamp(eps, math.asinh(2**15)).sinh() * tangent / radius.clamp(min=eps)

    def similarity(self: MERU, queries: Tensor, candidates: Tensor) -> Tensor:
        c, eps = self.curvature()[..., None], self.config.eps
        times = [(1 / c + p.square().sum(-1, keepdim=True)).sqrt() for p in (queries, candidates)]
        inner = queries @ candidates.mT - times[0] @ times[1].mT
        apart = torch.acosh((-c * inner).clamp(min=1 + eps)) / c.sqrt()
        return -product.combine(apart, self.config.metric) if isinstance(self.config, PHyCLIPConfig) else -apart

    def cone(self: MERU, general: Tensor, specific: Tensor) -> tuple[Tensor, Tensor]:
        c, eps = self.curvature(), self.config.eps
        norm = general.norm(dim=-1)
        times = [(1 / c + p.square().sum(-1)).sqrt() for p in (general, specific)]
        inner = c * ((general * specific).sum(-1) - times[0] * times[1])
        cosine = (times[1] + times[0] * inner) / (norm * (inner.square() - 1).clamp(min=eps).sqrt() + eps)
        sine = 2 * self.config.min_radius / (c.sqrt() * norm + eps)
        return torch.acos(cosine.clamp(-1 + eps, 1 - eps)), torch.asin(sine.clamp(max=1 - eps))


class PlainMERU(Printed, MERU):
    """MERU, plainly."""


class PlainHyCoCLIP(Printed, HyCoCLIP):
    """HyCoCLIP, plainly."""


class PlainPHyCLIP(Printed, PHyCLIP):
    """PHyCLIP, plainly."""


PLAIN: dict[str, type[MERU]] = {"meru": PlainMERU, "hycoclip": PlainHyCoCLIP, "phyclip": PlainPHyCLIP}


def build(name: str, *, plain: bool, full: bool) -> MERU:
    """Model of the papers' sizes (ViT-S/16, embeddings of 512); unless `full`, with towers of next to nothing."""
    kind, config_kind = MODELS[name].model, MODELS[name].config
    config: ModelConfig = config_kind()
    if not full:
        config = dataclasses.replace(
            config,
            image=ImageConfig(size_px=16, kwargs={"embed_dim": 4, "depth": 1, "num_heads": 1}),
            text=TextConfig(vocab_size=2, context_length=2, width=4, layers=1, heads=1),
        )
    if plain:
        kind, config = PLAIN[name], dataclasses.replace(config, loss_chunk=None)
    torch.manual_seed(0)
    model: MERU = kind(config)
    return model
