"""GLIP's head: the tower, then box deltas, centerness and a logit for each pair of cell and word piece."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.ground.glip.config import GlipConfig, HeadConfig, TextConfig
from pipeline.ground.glip.dyconv import DyConv
from pipeline.ground.glip.fpn import flatten_levels
from pipeline.ground.glip.fuse import LOGIT_LIMIT, Fuse, TextLayer


class Scale(nn.Module):
    """A learned factor for the box deltas of one level."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class GlipHead(nn.Module):
    """Tower and predictors. `cls_logits` is never called; it exists because the released files contain its weights."""

    def __init__(self, config: GlipConfig) -> None:
        super().__init__()
        head, text = config.head, config.text
        self.head = head
        self.dyhead_tower = nn.ModuleList(build_tower(head, text))
        if head.unused_classes:
            self.cls_logits = nn.Conv2d(head.channels, head.unused_classes, 1)
        self.bbox_pred = nn.Conv2d(head.channels, 4, 1)
        self.centerness = nn.Conv2d(head.channels, 1, 1)
        self.scales = nn.ModuleList(Scale() for _ in config.anchors.strides)
        self.dot_product_projection_text = nn.Linear(text.hidden_size, head.channels)
        self.log_scale = nn.Parameter(torch.tensor([head.log_scale]))
        self.bias_lang = nn.Parameter(torch.zeros(text.hidden_size))
        self.bias0 = nn.Parameter(torch.tensor([-math.log((1 - head.prior) / head.prior)]))
        for layer in (self.bbox_pred, self.centerness):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, visual: list[Tensor], lang: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return token logits [b, cells, t], box deltas [b, cells, 4] and centerness logits [b, cells], in float32."""
        for module in self.dyhead_tower:
            visual, lang = module(visual, lang, mask)
        if not self.head.fuse:
            lang = lang * mask[..., None]
        cells = flatten_levels(visual)
        deltas = [scale(self.bbox_pred(x).float()) for scale, x in zip(self.scales, visual, strict=True)]
        centerness = [self.centerness(x).float() for x in visual]
        return self.token_logits(cells, lang), flatten_levels(deltas), flatten_levels(centerness)[..., 0]

    def token_logits(self, cells: Tensor, lang: Tensor) -> Tensor:
        """Logits [b, n, t] of cells x [b, n, c] and unit word vectors e, the normalised `lang` [b, t, d].

        x . (W e / 2 + b) / exp(log_scale) + e . bias_lang + bias0
        """
        words = F.normalize(lang.float(), dim=-1)
        projected = self.dot_product_projection_text(words / 2)
        bias = words @ self.bias_lang.float() + self.bias0
        dots = (cells @ projected.to(cells.dtype).transpose(1, 2)).float()
        return (dots / self.log_scale.exp() + bias[:, None]).clamp(-LOGIT_LIMIT, LOGIT_LIMIT)


def build_tower(head: HeadConfig, text: TextConfig) -> list[nn.Module]:
    """Build `head.rounds` rounds of fusion, text layer and DyConv; without fusion, of DyConv only."""
    modules: list[nn.Module] = []
    for _ in range(head.rounds):
        if head.fuse:
            modules += [Fuse(head, text.hidden_size), TextLayer(text)]
        modules.append(DyConv(head))
    return modules
