"""Sampling positions of deformable convolutions that lie on a row or column of pixels, up to rounding.

Bilinear sampling is continuous there, but its derivative with respect to the position is not: the gradients on the two
sides differ. The last bit of the position decides which one a network computes, and both are correct.
"""

from dataclasses import dataclass
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor

from pipeline.stages.ground.glip import fuse as deform
from pipeline.stages.ground.glip.fuse import corners, sampling_positions

ROUNDING_PX = 3e-5  # difference of positions between float32 and float64, in the reference network and in ours
STEP_PX = 3e-6  # distance from the pixel at which the gradient of the other side is computed


@dataclass(frozen=True, kw_only=True)
class Kink:
    """A coordinate of a sampling position that rounding can move to the other side of a pixel."""

    call: int  # index of the deformable convolution, in order of computation
    index: int  # in its flattened offset map [b, 18, h, w]
    shift: float  # in pixels, to just past the pixel
    weight: float  # |gradient| of the offset: the influence of the side on other gradients

    def __str__(self) -> str:
        return f"convolution {self.call}, offset {self.index}, {abs(self.shift):.1e} px from the other side"


class Sampling:
    """A context that records all offset maps, and moves the position of one kink to the other side of its pixel."""

    def __init__(self, moved: Kink | None = None) -> None:
        self.moved = moved
        self.calls: list[tuple[Tensor, Tensor]] = []  # offset map; distance from the nearest pixel, [b, h, w, 9, 2]

    def __enter__(self) -> Self:
        self._patch: Any = patch.object(deform, "corners", self._corners)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    def _corners(self, offset: Tensor, size: tuple[int, int], stride: int) -> tuple[Tensor, Tensor]:
        if self.moved and self.moved.call == len(self.calls):
            shift = torch.zeros(offset.numel())
            shift[self.moved.index] = self.moved.shift
            offset = offset + shift.view_as(offset)
        offset.retain_grad()
        position = torch.stack(sampling_positions(offset.detach(), stride), dim=-1)
        is_near = (position > -2) & (
            position < torch.tensor(size) + 1
        )  # farther outside the map the sample is 0 on both sides
        self.calls.append((offset, torch.where(is_near, position - position.round(), 1.0)))
        return corners(offset, size, stride)

    def kinks(self) -> list[Kink]:
        """The kinks, sorted by falling weight. Call it after a backward pass."""
        found = []
        for call, (offset, distance) in enumerate(self.calls):
            b, _, height, width = offset.shape
            distance = distance.permute(0, 3, 4, 1, 2).reshape(b, 18, height, width).flatten()
            assert offset.grad is not None
            weight = offset.grad.flatten().abs()
            for index in (distance.abs() < ROUNDING_PX).nonzero().flatten().tolist():
                side = float(distance[index])
                shift = -side - STEP_PX if side >= 0 else -side + STEP_PX
                found.append(Kink(call=call, index=index, shift=shift, weight=float(weight[index])))
        return sorted(found, key=lambda kink: -kink.weight)
