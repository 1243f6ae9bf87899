"""The GLIP network: boxes and token logits for a batch of images of the same padded size and their prompts."""

from dataclasses import dataclass

from torch import Tensor, nn

from pipeline.ground.glip.anchors import pyramid_anchors
from pipeline.ground.glip.backbone import build_backbone
from pipeline.ground.glip.config import GlipConfig
from pipeline.ground.glip.fpn import Fpn, level_sizes
from pipeline.ground.glip.head import GlipHead
from pipeline.ground.glip.language import LanguageBackbone


@dataclass(frozen=True, kw_only=True)
class GlipOutput:
    """Predictions for each anchor. Levels are joined fine to coarse; cells are row-major."""

    token_logits: Tensor  # [b, cells, t]
    deltas: Tensor  # [b, cells, 4], see box_coder
    centerness: Tensor  # [b, cells], logits
    anchors: list[Tensor]  # per level [h*w, 4], xyxy pixels of the network's input


class ImageBackbone(nn.Module):
    """Image tower and feature pyramid, under their released key names."""

    def __init__(self, config: GlipConfig) -> None:
        super().__init__()
        self.body = build_backbone(config.backbone)
        self.fpn = Fpn(config.backbone.channels, config.head.channels, config.drop_block)

    def forward(self, images: Tensor) -> list[Tensor]:
        return self.fpn(self.body(images))


class Rpn(nn.Module):
    """The head, under its released key name."""

    def __init__(self, config: GlipConfig) -> None:
        super().__init__()
        self.head = GlipHead(config)

    def forward(self, visual: list[Tensor], lang: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.head(visual, lang, mask)


class Glip(nn.Module):
    """The full network. The keys of its state dict are those of the released checkpoints without `module.`."""

    def __init__(self, config: GlipConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = ImageBackbone(config)
        self.language_backbone = LanguageBackbone(config.text)
        self.rpn = Rpn(config)

    def forward(self, images: Tensor, ids: Tensor, mask: Tensor) -> GlipOutput:
        """Predictions for normalised, padded images [b, 3, h, w] and prompts.

        ids and mask are [b, t]; the mask is 0 for padding, which does not change the result.
        """
        return self.ground(self.backbone(images), ids, mask)

    def ground(self, visual: list[Tensor], ids: Tensor, mask: Tensor) -> GlipOutput:
        """Predictions from the output of `backbone`, for running several prompts on the same image features."""
        lang = self.language_backbone(ids, mask)
        token_logits, deltas, centerness = self.rpn(visual, lang, mask)
        anchors = pyramid_anchors(level_sizes(visual), self.config.anchors, ids.device)
        return GlipOutput(token_logits=token_logits, deltas=deltas, centerness=centerness, anchors=anchors)
