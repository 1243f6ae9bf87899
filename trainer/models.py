"""The models: which lift, which similarity, which pairs contrast, which entail.

Shapes: b pairs, d embedding width, l tokens. Images are [b 3 h w] in [0, 1]; the models normalise them.
Parameter names are those of the released checkpoints.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.encoders.image import ImageConfig, build_image_encoder
from trainer.encoders.text import TextConfig, TextEncoder
from trainer.losses import contrastive

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Towers and embedding of any model. `max_logit_scale` bounds 1/temperature."""

    image: ImageConfig = field(default_factory=ImageConfig)
    text: TextConfig = field(default_factory=TextConfig)
    embed_dim: int = 512
    max_logit_scale: float = 100.0


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What a model says about a batch: the loss to minimise, and the terms to log (without gradients)."""

    loss: Tensor
    terms: dict[str, Tensor]


class DualEncoder(nn.Module):
    """Two towers and their projections into one width: what all the models share."""

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.visual = build_image_encoder(config.image)
        self.textual = TextEncoder(config.text)
        self.visual_proj = projection(int(self.visual.num_features), config.embed_dim)
        self.textual_proj = projection(self.textual.num_features, config.embed_dim)
        self.logit_scale = nn.Parameter(torch.tensor(np.log(1 / 0.07), dtype=torch.float32))
        self.register_buffer("pixel_mean", torch.tensor(IMAGENET_MEAN).view(3, 1, 1))
        self.register_buffer("pixel_std", torch.tensor(IMAGENET_STD).view(3, 1, 1))

    def image_features(self, images: Tensor) -> Tensor:
        """[b d] before any lift: what zero-shot classifiers average."""
        return self.visual_proj(self.visual((images - self.pixel_mean) / self.pixel_std))

    def text_features(self, token_ids: Tensor) -> Tensor:
        """[b d] before any lift."""
        return self.textual_proj(self.textual(token_ids))

    @torch.no_grad()
    def clamp_parameters(self) -> None:
        """Keep the learned scalars in range. The training loop calls it after each optimizer step."""
        self.logit_scale.clamp_(max=float(np.log(self.config.max_logit_scale)))


def projection(width: int, embed_dim: int) -> nn.Linear:
    layer = nn.Linear(width, embed_dim, bias=False)
    nn.init.normal_(layer.weight, std=width**-0.5)
    return layer


class CLIP(DualEncoder):
    """Cosine similarity, symmetric contrastive loss (Radford et al. 2021)."""

    def encode_image(self, images: Tensor) -> Tensor:
        """[b d], of unit length."""
        return F.normalize(self.image_features(images).float(), dim=-1)

    def encode_text(self, token_ids: Tensor) -> Tensor:
        """[b d], of unit length."""
        return F.normalize(self.text_features(token_ids).float(), dim=-1)

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Cosine [b n] of encoded inputs."""
        return queries @ candidates.T

    def losses(self, image: Tensor, text: Tensor) -> Losses:
        """Of embeddings [b d]."""
        scale = self.logit_scale.exp()
        logits = scale * self.similarity(image, text)
        loss = (contrastive(logits) + contrastive(logits.T)) / 2
        return Losses(loss=loss, terms={"contrastive": loss.detach(), "logit_scale": scale.detach()})
