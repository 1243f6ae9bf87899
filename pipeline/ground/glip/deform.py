"""Modulated deformable 3x3 convolution (Zhu et al., CVPR 2019): torchvision's operator on GPUs, a faster one on CPUs.

Axes: b images, m = oh*ow output cells, k = 9 taps row-major, c channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import deform_conv2d


def modulated_deform_conv(
    x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor | None, stride: int
) -> Tensor:
    """Convolve `x` with a 3x3 kernel whose taps are shifted by `offset` and scaled by `mask`; padding 1.

    x [b, c, h, w], offset [b, 18, oh, ow] as (y, x) per tap, mask [b, 9, oh, ow], weight [o, c, 3, 3]; returns
    [b, o, oh, ow]. Runs in float32, because half precision is too coarse for sampling positions; on CPUs, autocast
    still applies to the final product.
    """
    if x.is_cuda:
        with torch.autocast("cuda", enabled=False):
            bias32 = None if bias is None else bias.float()
            return deform_conv2d(
                x.float(), offset.float(), weight.float(), bias32, stride=stride, padding=1, mask=mask.float()
            )
    columns = sample_taps(x, offset, mask, stride)
    b, oh, ow = offset.shape[0], offset.shape[2], offset.shape[3]
    taps_last = weight.permute(0, 2, 3, 1).flatten(1)  # [o, k*c]
    return F.linear(columns, taps_last, bias).view(b, oh, ow, -1).permute(0, 3, 1, 2)


def sample_taps(x: Tensor, offset: Tensor, mask: Tensor, stride: int) -> Tensor:
    """Bilinear samples times modulation, float32 [b*m, k*c]; zero outside the map.

    Each sample is a weighted sum of four pixels. With the pixels as rows of a table, `embedding_bag` computes all sums
    in one pass.
    """
    b, c, height, width = x.shape
    rows = x.permute(0, 2, 3, 1).reshape(-1, c).float()
    index, weight = corners(offset.float(), (height, width), stride)
    weight = weight * mask.float().permute(0, 2, 3, 1)[..., None]
    image = torch.arange(b, dtype=torch.int32, device=x.device).view(b, 1, 1, 1, 1) * (height * width)
    index = (index + image).view(-1, 4)
    taps = F.embedding_bag(index, rows, per_sample_weights=weight.reshape(-1, 4), mode="sum")
    return taps.view(-1, 9 * c)


def corners(offset: Tensor, size: tuple[int, int], stride: int) -> tuple[Tensor, Tensor]:
    """Row-major pixel indices (int32) and bilinear weights of the four neighbours of each sampling position.

    Both are [b, oh, ow, 9, 4].
    """
    height, width = size
    y, x = sampling_positions(offset, stride)
    with torch.no_grad():
        top, left = y.floor(), x.floor()
        corner_rows = torch.stack([top, top, top + 1, top + 1], dim=-1)
        corner_columns = torch.stack([left, left + 1, left, left + 1], dim=-1)
        is_inside = (corner_rows >= 0) & (corner_rows < height) & (corner_columns >= 0) & (corner_columns < width)
        # Neighbours outside the map get index 0 and weight 0. A non-finite offset is outside, but its weight is NaN, so
        # the result is NaN too.
        index = torch.where(is_inside, corner_rows * width + corner_columns, 0).int()
    to_bottom, to_right = y - top, x - left  # weights of the lower and the right neighbours
    to_top, to_left = 1 - to_bottom, 1 - to_right
    weight = torch.stack([to_top * to_left, to_top * to_right, to_bottom * to_left, to_bottom * to_right], dim=-1)
    return index, weight * is_inside


def sampling_positions(offset: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Row and column, in pixels of the input, at which each tap of each output cell samples; both [b, oh, ow, 9]."""
    b, _, oh, ow = offset.shape
    shift = offset.view(b, 9, 2, oh, ow).permute(0, 3, 4, 1, 2)
    tap = torch.arange(9, device=offset.device)
    row = torch.arange(oh, device=offset.device).view(oh, 1, 1) * stride + tap // 3 - 1
    column = torch.arange(ow, device=offset.device).view(1, ow, 1) * stride + tap % 3 - 1
    return shift[..., 0] + row, shift[..., 1] + column
