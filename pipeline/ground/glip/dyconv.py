"""DyConv: one block of the dynamic head (Dai et al., CVPR 2021) over five pyramid levels."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.ground.glip.config import HeadConfig
from pipeline.ground.glip.deform import modulated_deform_conv

N_OFFSETS = 18  # offset channels: (y, x) of each of nine taps; nine modulation channels follow


class NormedConv(nn.Module):
    """A 3x3 convolution, deformable or plain, followed by GroupNorm."""

    def __init__(self, channels: int, stride: int, groups: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(channels, channels, 3, stride=stride, padding=1)
        self.bn = nn.GroupNorm(groups, channels)
        bound = (9 * channels) ** -0.5
        nn.init.uniform_(self.conv.weight, -bound, bound)
        nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, offset: Tensor | None, mask: Tensor | None) -> Tensor:
        if offset is None or mask is None:
            return self.bn(self.conv(x))
        return self.bn(modulated_deform_conv(x, offset, mask, self.conv.weight, self.conv.bias, self.stride))


class DyReLU(nn.Module):
    """The maximum of two linear functions whose slopes and intercepts depend on the image (Chen et al., ECCV 2020)."""

    def __init__(self, channels: int, reduction: int) -> None:
        super().__init__()
        hidden = channels // reduction
        self.fc = nn.Sequential(
            nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, 4 * channels), nn.Hardsigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        a1, b1, a2, b2 = self.fc(x.mean(dim=(2, 3)))[:, :, None, None].chunk(4, dim=1)
        first = x * ((a1 - 0.5) * 2 + 1) + (b1 - 0.5)
        return torch.maximum(first, x * ((a2 - 0.5) * 2) + (b2 - 0.5))


class DyConv(nn.Module):
    """Convolve each level and its finer and coarser neighbours; the new level is their mean, weighted by attention."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        channels, groups = config.channels, config.norm_groups
        self.coarse_offsets: Literal["flat_memory", "resize"] = config.coarse_offsets
        # in the released order: convolution of the coarser level, of the level itself, of the finer level
        self.DyConv = nn.ModuleList(NormedConv(channels, stride, groups) for stride in (1, 1, 2))
        attention = nn.Conv2d(channels, 1, 1)
        self.AttnConv = nn.Sequential(nn.AdaptiveAvgPool2d(1), attention, nn.ReLU())
        self.relu = DyReLU(channels, config.dyrelu_reduction)
        self.offset = nn.Conv2d(channels, N_OFFSETS + 9, 3, padding=1) if config.deformable else None
        nn.init.normal_(attention.weight, std=0.01)
        nn.init.zeros_(attention.bias)  # type: ignore[arg-type]
        if self.offset is not None:  # with small offsets, a deformable convolution starts as a plain one
            nn.init.normal_(self.offset.weight, std=0.01)
            nn.init.zeros_(self.offset.bias)  # type: ignore[arg-type]

    def forward(self, visual: list[Tensor], lang: Tensor, mask: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the new levels, and `lang` unchanged."""
        return [self.relu(self._level(visual, level)) for level in range(len(visual))], lang

    def _level(self, visual: list[Tensor], level: int) -> Tensor:
        x = visual[level]
        from_coarser, from_same, from_finer = self.DyConv
        offset, modulation = self._offsets(x)
        results = [from_same(x, offset, modulation)]
        if level > 0:
            results.append(from_finer(visual[level - 1], offset, modulation))
        if level + 1 < len(visual):
            coarser = visual[level + 1]
            out = from_coarser(coarser, *self._for_coarser(offset, modulation, coarser.shape[-2:]))
            results.append(F.interpolate(out, size=x.shape[-2:], mode="bilinear", align_corners=True))
        total = torch.stack([result * F.hardsigmoid(self.AttnConv(result)) for result in results])
        return total.mean(dim=0)

    def _offsets(self, x: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Offsets and modulation at each cell of a level; None for plain convolutions."""
        if self.offset is None:
            return None, None
        maps = self.offset(x).float()
        return maps[:, :N_OFFSETS], maps[:, N_OFFSETS:].sigmoid()

    def _for_coarser(
        self, offset: Tensor | None, modulation: Tensor | None, size: torch.Size
    ) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """A level's offsets and modulation at the size of the next coarser level."""
        if offset is None or modulation is None:
            return None, None
        if self.coarse_offsets == "flat_memory":
            return flat_memory(offset, size), flat_memory(modulation, size)
        resized = [
            F.interpolate(maps, size=size, mode="bilinear", align_corners=False) for maps in (offset, modulation)
        ]
        return resized[0], resized[1]


def flat_memory(maps: Tensor, size: torch.Size) -> Tensor:
    """Reinterpret the first values of each image's maps as maps of another height and width.

    The CUDA kernel that the released weights were trained with reads a finer level's map with the coarser level's row
    length and without a bounds check (microsoft/GLIP issues 52 and 62). The released weights depend on this.
    """
    b, channels = maps.shape[:2]
    height, width = size
    return maps.reshape(b, -1)[:, : channels * height * width].view(b, channels, height, width)
