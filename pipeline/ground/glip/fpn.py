"""Feature pyramid (Lin et al., CVPR 2017) with P6 and P7 as in RetinaNet: five levels from three feature maps."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import drop_block2d


class TopBlocks(nn.Module):
    """P6 from P5 and P7 from relu(P6), 3x3 convolutions of stride 2."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.p6 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.p7 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, p5: Tensor) -> tuple[Tensor, Tensor]:
        p6 = self.p6(p5)
        return p6, self.p7(F.relu(p6))


class Fpn(nn.Module):
    """P3 to P7 from feature maps at strides 8, 16 and 32. Layer names contain the index of the backbone stage."""

    def __init__(self, in_channels: tuple[int, ...], channels: int, drop_block: float) -> None:
        super().__init__()
        self.drop_block = drop_block
        for stage, width in zip((2, 3, 4), in_channels, strict=True):
            self.add_module(f"fpn_inner{stage}", nn.Conv2d(width, channels, 1))
            self.add_module(f"fpn_layer{stage}", nn.Conv2d(channels, channels, 3, padding=1))
        self.top_blocks = TopBlocks(channels)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, a=1)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        c3, c4, c5 = features
        top = self.get_submodule("fpn_inner4")(c5)
        p5 = self.get_submodule("fpn_layer4")(top)
        levels = [p5]
        for stage, feature in ((3, c4), (2, c3)):
            lateral = self.get_submodule(f"fpn_inner{stage}")(feature)
            top = lateral + F.interpolate(top, size=lateral.shape[-2:], mode="nearest")
            dropped = drop_block2d(top, self.drop_block, block_size=3, training=self.training)
            levels.insert(0, self.get_submodule(f"fpn_layer{stage}")(dropped))
        return [*levels, *self.top_blocks(p5)]


def level_sizes(features: list[Tensor]) -> list[tuple[int, int]]:
    """Height and width of each level."""
    return [(int(feature.shape[-2]), int(feature.shape[-1])) for feature in features]


def flatten_levels(features: list[Tensor]) -> Tensor:
    """Join levels [b, c, h, w], fine to coarse, to [b, cells, c]; cells are row-major."""
    return torch.cat([feature.flatten(2).transpose(1, 2) for feature in features], dim=1)


def split_levels(cells: Tensor, sizes: list[tuple[int, int]]) -> list[Tensor]:
    """Split [b, cells, c] into levels [b, c, h, w]; the inverse of `flatten_levels`."""
    parts = cells.split([height * width for height, width in sizes], dim=1)
    return [
        part.transpose(1, 2).unflatten(2, (height, width)) for part, (height, width) in zip(parts, sizes, strict=True)
    ]
