"""GLIP's head: the tower, then box deltas, centerness and a logit for each pair of cell and word piece."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.stages.ground.glip.config import AnchorConfig, GlipConfig, HeadConfig, TextConfig
from pipeline.stages.ground.glip.fuse import LOGIT_LIMIT, DyConv, Fuse, TextLayer, flatten_levels


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


# Anchors: one square box per cell of each feature map, in inclusive pixel coordinates.


def level_anchors(size: tuple[int, int], stride: int, side_in_strides: float, device: torch.device) -> Tensor:
    """Anchors of one level: xyxy [h*w, 4], row-major. The centre of the first one is at (stride - 1) / 2 in x and y."""
    rows = torch.arange(size[0], device=device, dtype=torch.float32) * stride + (stride - 1) / 2
    columns = torch.arange(size[1], device=device, dtype=torch.float32) * stride + (stride - 1) / 2
    half = (side_in_strides * stride - 1) / 2
    y, x = (axis.flatten() for axis in torch.meshgrid(rows, columns, indexing="ij"))
    return torch.stack([x - half, y - half, x + half, y + half], dim=1)


def pyramid_anchors(sizes: list[tuple[int, int]], config: AnchorConfig, device: torch.device) -> list[Tensor]:
    """Anchors of every level, fine to coarse; `sizes` holds the height and width of each feature map."""
    return [
        level_anchors(size, stride, config.size, device) for size, stride in zip(sizes, config.strides, strict=True)
    ]


def centers(boxes: Tensor) -> Tensor:
    """Centres [..., 2] of xyxy boxes."""
    return (boxes[..., :2] + boxes[..., 2:]) / 2


# Decode boxes from offsets to anchors; compute sides of boxes with inclusive corners.
#
# A box with inclusive corners contains its corner pixels: its width is x_max - x_min + 1, its centre (x_min + x_max) / 2.

WEIGHTS = (10.0, 10.0, 5.0, 5.0)
MAX_LOG_RATIO = math.log(1000.0 / 16.0)


def decode(deltas: Tensor, anchors: Tensor) -> Tensor:
    """Convert deltas [..., 4] to boxes [..., 4]: inclusive xyxy in float32."""
    deltas = deltas.float() / deltas.new_tensor(WEIGHTS, dtype=torch.float32)
    sides = inclusive_sides(anchors)
    center = deltas[..., :2] * sides + centers(anchors)
    half = (deltas[..., 2:].clamp(max=MAX_LOG_RATIO).exp() * sides - 1) / 2
    return torch.cat([center - half, center + half], dim=-1)


def inclusive_sides(boxes: Tensor) -> Tensor:
    """Width and height [..., 2] of boxes with inclusive corners."""
    return boxes[..., 2:] - boxes[..., :2] + 1


def to_exclusive(boxes: Tensor) -> Tensor:
    """Convert inclusive boxes [..., 4] to exclusive right and bottom sides, which torchvision's functions expect."""
    return torch.cat([boxes[..., :2], boxes[..., 2:] + 1], dim=-1)
