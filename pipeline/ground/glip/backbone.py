"""The image tower: Swin for the released models, a small residual network of timm for the miniature."""

from functools import partial

import timm
from timm.layers import GroupNorm
from torch import Tensor, nn

from pipeline.ground.glip.config import ConvConfig, SwinConfig
from pipeline.ground.glip.swin import Swin


def build_backbone(config: SwinConfig | ConvConfig) -> nn.Module:
    """Build the image tower, which turns [b, 3, h, w] into feature maps at strides 8, 16 and 32."""
    return Swin(config) if isinstance(config, SwinConfig) else ConvBackbone(config)


class ConvBackbone(nn.Module):
    """A residual network of timm with feature maps at strides 8, 16 and 32. Its keys have the prefix `model.`."""

    def __init__(self, config: ConvConfig) -> None:
        super().__init__()
        self.model = timm.create_model(
            "resnet10t",
            pretrained=False,
            features_only=True,
            out_indices=(2, 3, 4),
            norm_layer=partial(GroupNorm, num_groups=config.norm_groups),
            **config.kwargs,
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        return list(self.model(images))
