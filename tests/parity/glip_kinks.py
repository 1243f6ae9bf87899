"""Sampling positions of deformable convolutions that lie on a pixel's row or column, up to rounding.

Bilinear sampling is continuous there, but its derivative by the position jumps: the gradient is one-sided, and which side
a network takes is decided by the last bit of the position. Both are right.
"""

from dataclasses import dataclass
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor

from pipeline.ground.glip import deform
from pipeline.ground.glip.deform import corners, sampling_positions

ROUNDING_PX = 3e-5  # difference of positions between float32 and float64 in the reference's and in our network
STEP_PX = 3e-6  # how far past the pixel the other side is taken


@dataclass(frozen=True, kw_only=True)
class Kink:
    """One coordinate of one sampling position."""

    call: int  # deformable convolution, in order of computation
    place: int  # flat position in its offset map [b, 18, h, w]
    shift: float  # px that move it just past the pixel
    weight: float  # |gradient| of the offset: the more, the more depends on the side

    def __str__(self) -> str:
        return f"convolution {self.call}, offset {self.place}, {abs(self.shift):.1e} px from the other side"


class Sampling:
    """A context that notes every offset map, and moves one position to its pixel's other side."""

    def __init__(self, moved: Kink | None = None) -> None:
        self.moved = moved
        self.calls: list[tuple[Tensor, Tensor]] = []  # offset map, positions less the nearest pixel [b, h, w, 9, 2]

    def __enter__(self) -> Self:
        self._patch: Any = patch.object(deform, "corners", self._corners)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    def _corners(self, offset: Tensor, size: tuple[int, int], stride: int) -> tuple[Tensor, Tensor]:
        if self.moved and self.moved.call == len(self.calls):
            shift = torch.zeros(offset.numel())
            shift[self.moved.place] = self.moved.shift
            offset = offset + shift.view_as(offset)
        offset.retain_grad()
        position = torch.stack(sampling_positions(offset.detach(), stride), dim=-1)
        is_near = (position > -2) & (position < torch.tensor(size) + 1)  # elsewhere the sample is zero on both sides
        self.calls.append((offset, torch.where(is_near, position - position.round(), 1.0)))
        return corners(offset, size, stride)

    def kinks(self) -> list[Kink]:
        """The positions that rounding can carry over a pixel, those that matter most first; after a backward pass."""
        found = []
        for call, (offset, distance) in enumerate(self.calls):
            b, _, height, width = offset.shape
            distance = distance.permute(0, 3, 4, 1, 2).reshape(b, 18, height, width).flatten()
            assert offset.grad is not None
            weight = offset.grad.flatten().abs()
            for place in (distance.abs() < ROUNDING_PX).nonzero().flatten().tolist():
                side = float(distance[place])
                shift = -side - STEP_PX if side >= 0 else -side + STEP_PX
                found.append(Kink(call=call, place=place, shift=shift, weight=float(weight[place])))
        return sorted(found, key=lambda kink: -kink.weight)
