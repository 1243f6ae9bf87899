"""Deep fusion (GLIP, section 3.2): image cells and word pieces attend to each other, then word pieces to themselves.

Axes: b images, n cells of all levels, t word pieces, h heads, c channels of the image, d channels of the text.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import deform_conv2d

from pipeline.stages.ground.glip.config import HeadConfig, TextConfig

# Modulated deformable 3x3 convolution (Zhu et al., CVPR 2019): torchvision's operator on GPUs, a faster one on CPUs.
#
# Axes: b images, m = oh*ow output cells, k = 9 taps row-major, c channels.


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

    Args:
        x: features [b c h w].
        offset: shifts of the nine taps of a 3 x 3 kernel from the pixel grid, y and x of each [b 18 h' w'].
        mask: modulation of the taps [b 9 h' w'].
        stride: step between the output's pixels.
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
    top, left = y.floor(), x.floor()
    corner_rows = torch.stack([top, top, top + 1, top + 1], dim=-1)
    corner_columns = torch.stack([left, left + 1, left, left + 1], dim=-1)
    is_inside = (corner_rows >= 0) & (corner_rows < height) & (corner_columns >= 0) & (corner_columns < width)
    # Neighbours outside the map get index 0 and weight 0. A non-finite offset is outside, but its weight is NaN, so the
    # result is NaN too.
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


# DyConv: one block of the dynamic head (Dai et al., CVPR 2021) over five pyramid levels.

N_OFFSETS = 18  # offset channels: (y, x) of each of nine taps; nine modulation channels follow


class NormedConv(nn.Module):
    """A 3x3 convolution, deformable or plain, followed by GroupNorm."""

    def __init__(self, channels: int, stride: int, groups: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(channels, channels, 3, stride=stride, padding=1)
        self.bn = nn.GroupNorm(groups, channels)

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
        self.AttnConv = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 1, 1), nn.ReLU())
        self.relu = DyReLU(channels, config.dyrelu_reduction)
        self.offset = nn.Conv2d(channels, N_OFFSETS + 9, 3, padding=1) if config.deformable else None

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


# Feature pyramid (Lin et al., CVPR 2017) with P6 and P7 as in RetinaNet: five levels from three feature maps.


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

    def __init__(self, in_channels: tuple[int, ...], channels: int) -> None:
        super().__init__()
        for stage, width in zip((2, 3, 4), in_channels, strict=True):
            self.add_module(f"fpn_inner{stage}", nn.Conv2d(width, channels, 1))
            self.add_module(f"fpn_layer{stage}", nn.Conv2d(channels, channels, 3, padding=1))
        self.top_blocks = TopBlocks(channels)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        c3, c4, c5 = features
        top = self.get_submodule("fpn_inner4")(c5)
        p5 = self.get_submodule("fpn_layer4")(top)
        levels = [p5]
        for stage, feature in ((3, c4), (2, c3)):
            lateral = self.get_submodule(f"fpn_inner{stage}")(feature)
            top = lateral + F.interpolate(top, size=lateral.shape[-2:], mode="nearest")
            levels.insert(0, self.get_submodule(f"fpn_layer{stage}")(top))
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


LOGIT_LIMIT = 50_000.0  # as in the released model; keeps float16 finite
PADDING_PENALTY = -9e15  # added to the attention scores of padding


class BiAttention(nn.Module):
    """Attention from cells to words and from words to cells, with a shared score matrix.

    Cells attend to words that are not padding. Words attend to all cells of all levels, including cells of padded
    pixels. The result of an image therefore depends on its padded size, and only images of the same padded size can
    share a batch.
    """

    def __init__(self, visual: int, lang: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.v_proj = nn.Linear(visual, width)
        self.l_proj = nn.Linear(lang, width)
        self.values_v_proj = nn.Linear(visual, width)
        self.values_l_proj = nn.Linear(lang, width)
        self.out_v_proj = nn.Linear(width, visual)
        self.out_l_proj = nn.Linear(width, lang)

    def forward(self, v: Tensor, lang: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the updates of `v` [b, n, c] and of `lang` [b, t, d]; `mask` [b, t] is 0 for padding."""
        query = split_heads(self.v_proj(v) * self.scale, self.heads)
        key = split_heads(self.l_proj(lang), self.heads)
        scores = (query @ key.transpose(2, 3)).clamp(-LOGIT_LIMIT, LOGIT_LIMIT)  # [b, h, n, t]
        # in float32, so that padding never gets more weight than a word with a very low score
        penalty = torch.zeros(mask.shape, device=mask.device).masked_fill(mask == 0, PADDING_PENALTY)
        to_words = (scores.float() + penalty[:, None, None]).softmax(dim=3)
        by_word = scores.transpose(2, 3).float().contiguous()  # softmax along strided rows is slow on a CPU
        to_cells = by_word.softmax(dim=3)
        value_l = split_heads(self.values_l_proj(lang), self.heads)
        value_v = split_heads(self.values_v_proj(v), self.heads)
        delta_v = to_words.to(value_l.dtype) @ value_l
        delta_l = to_cells.to(value_v.dtype) @ value_v
        return self.out_v_proj(join_heads(delta_v)), self.out_l_proj(join_heads(delta_l))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Split the channels of `x` into heads: [b, n, h * width] to [b, h, n, width]."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """The inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)


class FuseBlock(nn.Module):
    """Add two-way attention, scaled per channel, to the *normalised* inputs, as the released model does."""

    def __init__(self, head: HeadConfig, lang: int) -> None:
        super().__init__()
        self.layer_norm_v = nn.LayerNorm(head.channels)
        self.layer_norm_l = nn.LayerNorm(lang)
        self.attn = BiAttention(head.channels, lang, head.fuse_width, head.fuse_heads)
        self.gamma_v = nn.Parameter(torch.full((head.channels,), 1.0 / head.rounds))
        self.gamma_l = nn.Parameter(torch.full((lang,), 1.0 / head.rounds))

    def forward(self, visual: list[Tensor], lang: Tensor, mask: Tensor) -> tuple[list[Tensor], Tensor]:
        v, lang = self.layer_norm_v(flatten_levels(visual)), self.layer_norm_l(lang)
        delta_v, delta_l = self.attn(v, lang, mask)
        return split_levels(v + self.gamma_v * delta_v, level_sizes(visual)), lang + self.gamma_l * delta_l


class Fuse(nn.Module):
    """A `FuseBlock` under its released key name, `b_attn`."""

    def __init__(self, head: HeadConfig, lang: int) -> None:
        super().__init__()
        self.b_attn = FuseBlock(head, lang)

    def forward(self, visual: list[Tensor], lang: Tensor, mask: Tensor) -> tuple[list[Tensor], Tensor]:
        return self.b_attn(visual, lang, mask)


class TextSelfAttention(nn.Module):
    """BERT's self-attention, with clamped scores."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (split_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        scores = (query @ key.transpose(2, 3) * query.shape[-1] ** -0.5).clamp(-LOGIT_LIMIT, LOGIT_LIMIT).float()
        scores = scores.masked_fill(mask[:, None, None] == 0, torch.finfo(torch.float32).min)
        weights = scores.softmax(dim=3)
        return join_heads(weights.to(value.dtype) @ value)


class TextOutput(nn.Module):
    """Project, add the residual and normalise. With `clamps`, values are clamped before and after the normalisation."""

    def __init__(self, width: int, config: TextConfig, *, clamps: bool) -> None:
        super().__init__()
        self.clamps = clamps
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=1e-12)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = self.dense(x) + residual
        if not self.clamps:
            return self.LayerNorm(x)
        return self.LayerNorm(x.clamp(-LOGIT_LIMIT, LOGIT_LIMIT)).clamp(-LOGIT_LIMIT, LOGIT_LIMIT)


class TextLayer(nn.Module):
    """A post-norm BERT layer for the fused words, with the clamps of the released model."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        attention = {"self": TextSelfAttention(config), "output": TextOutput(config.hidden_size, config, clamps=False)}
        self.attention = nn.ModuleDict(attention)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.intermediate_size)})
        self.output = TextOutput(config.intermediate_size, config, clamps=True)

    def forward(self, visual: list[Tensor], lang: Tensor, mask: Tensor) -> tuple[list[Tensor], Tensor]:
        x = self.attention["output"](self.attention["self"](lang, mask), lang)
        wide = self.intermediate["dense"](x).clamp(-LOGIT_LIMIT, LOGIT_LIMIT)
        return visual, self.output(F.gelu(wide).clamp(-LOGIT_LIMIT, LOGIT_LIMIT), x)
