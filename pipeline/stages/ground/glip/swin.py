"""Swin transformer v1 (Liu et al., ICCV 2021) as in GLIP's released code.

Axes: b images, n windows of an image, p cells of a window, h heads, c channels.

Three details differ from other implementations, and the released weights depend on them:
- Odd blocks always shift, even if one window covers the whole map.
- Maps are padded to a multiple of the window size after the norm and before the shift; attention includes padded cells.
- Patch merging concatenates the cells at (even row, even column), (odd, even), (even, odd), (odd, odd), in this order.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.stages.ground.glip.config import SwinConfig

SHIFT_PENALTY = -100.0  # added to the logits of pairs of cells that are neighbours only because of the cyclic shift


class WindowAttention(nn.Module):
    """Self-attention within windows, with a learned bias per relative position."""

    relative_position_index: Tensor

    def __init__(self, dim: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.register_buffer("relative_position_index", relative_position_index(window), persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Attend within each window of x [b, n, p, c]. `mask` [n, p, p] is added to the logits."""
        b, n, p, c = x.shape
        q, k, v = self.qkv(x).view(b, n, p, 3, self.heads, c // self.heads).permute(3, 0, 1, 4, 2, 5)
        bias = self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)  # [h, p, p]
        if mask is None:
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))  # [b*n, h, p, c/h]: all windows share one bias
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None].to(q.dtype))
        else:
            q, k, v = (t.flatten(1, 2) for t in (q, k, v))  # [b, n*h, p, c/h]: each window has its own bias
            window_bias = (bias[None] + mask[:, None]).flatten(0, 1)[None]
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=window_bias.to(q.dtype))
        return self.proj(out.view(b, n, self.heads, p, c // self.heads).transpose(2, 3).reshape(b, n, p, c))


class Mlp(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """Window attention, shifted by half a window if `is_shifted`, then the MLP; both with pre-norm."""

    def __init__(self, dim: int, heads: int, window: int, is_shifted: bool) -> None:
        super().__init__()
        self.window = window
        self.shift = window // 2 if is_shifted else 0
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, heads, window)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim)

    def forward(self, x: Tensor, size: tuple[int, int], shift_mask: Tensor) -> Tensor:
        """Return the new x [b, h*w, c]; `size` is (height, width), and shifted blocks use `shift_mask` [n, p, p]."""
        b, _, c = x.shape
        height, width = size
        grid = self.norm1(x).view(b, height, width, c)
        grid = F.pad(grid, (0, 0, 0, -width % self.window, 0, -height % self.window))
        padded = grid.shape[1:3]
        if self.shift:
            grid = grid.roll((-self.shift, -self.shift), dims=(1, 2))
        cells = to_windows(grid, self.window)
        cells = self.attn(cells, shift_mask if self.shift else None)
        grid = from_windows(cells, self.window, (int(padded[0]), int(padded[1])))
        if self.shift:
            grid = grid.roll((self.shift, self.shift), dims=(1, 2))
        x = x + grid[:, :height, :width].reshape(b, height * width, c)
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    """Concatenate and project 2x2 cells: half the height and width, twice the channels."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        grid = x.unflatten(1, size)
        grid = F.pad(grid, (0, 0, 0, size[1] % 2, 0, size[0] % 2))
        corners = [grid[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduction(self.norm(torch.cat(corners, dim=-1).flatten(1, 2)))


class Stage(nn.Module):
    """The blocks of one resolution, followed by patch merging except in the last stage."""

    def __init__(self, dim: int, heads: int, window: int, blocks: int, is_last: bool) -> None:
        super().__init__()
        self.window = window
        self.blocks = nn.ModuleList(Block(dim, heads, window, is_shifted=i % 2 == 1) for i in range(blocks))
        self.downsample = None if is_last else PatchMerging(dim)

    def forward(self, x: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return the output of this stage and the input of the next one."""
        mask = shift_mask(size, self.window, x.device)
        for block in self.blocks:
            x = block(x, size, mask)
        return x, x if self.downsample is None else self.downsample(x, size)


class PatchEmbed(nn.Module):
    """Project and normalise patches of 4x4 pixels; images are padded to a multiple of 4."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, 4, stride=4)
        self.norm = nn.LayerNorm(dim)

    def forward(self, images: Tensor) -> Tensor:
        """Convert images [b, 3, h, w] to features [b, c, h/4, w/4]."""
        images = F.pad(images, (0, -images.shape[3] % 4, 0, -images.shape[2] % 4))
        return self.norm(self.proj(images).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Swin(nn.Module):
    """Feature maps of stages 2 to 4 (strides 8, 16, 32), taken before down-sampling and normalised."""

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        dims = [config.embed_dim * 2**stage for stage in range(len(config.depths))]
        self.patch_embed = PatchEmbed(config.embed_dim)
        self.layers = nn.ModuleList(
            Stage(dim, heads, config.window, blocks, is_last=dim == dims[-1])
            for dim, heads, blocks in zip(dims, config.heads, config.depths, strict=True)
        )
        for stage, dim in enumerate(dims[1:], start=1):
            self.add_module(f"norm{stage}", nn.LayerNorm(dim))

    def forward(self, images: Tensor) -> list[Tensor]:
        x = self.patch_embed(images)
        size = (int(x.shape[2]), int(x.shape[3]))
        x = x.flatten(2).transpose(1, 2)
        outputs: list[Tensor] = []
        for stage, layer in enumerate(self.layers):
            out, x = layer(x, size)
            if stage:
                out = self.get_submodule(f"norm{stage}")(out)
                outputs.append(out.transpose(1, 2).unflatten(2, size))
            size = ((size[0] + 1) // 2, (size[1] + 1) // 2)
        return outputs


def relative_position_index(window: int) -> Tensor:
    """Row of the bias table for each pair of cells in a window, int64 [p, p]."""
    rows, columns = torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
    rows, columns = rows.flatten(), columns.flatten()
    return (rows[:, None] - rows + window - 1) * (2 * window - 1) + (columns[:, None] - columns + window - 1)


def shift_mask(size: tuple[int, int], window: int, device: torch.device) -> Tensor:
    """Penalty [n, p, p] for pairs of cells of a shifted window that come from opposite sides of the map."""
    shift = window // 2

    def section(length: int) -> Tensor:
        padded = length + -length % window
        position = torch.arange(padded, device=device)
        return (position >= padded - window).int() + (position >= padded - shift).int()

    region = 3 * section(size[0])[:, None] + section(size[1])
    cells = to_windows(region[None, :, :, None], window)[0, :, :, 0]
    return (cells[:, None, :] != cells[:, :, None]).float() * SHIFT_PENALTY


def to_windows(grid: Tensor, window: int) -> Tensor:
    """Split a map [b, h, w, c] into windows [b, n, p, c]."""
    b, height, width, c = grid.shape
    grid = grid.view(b, height // window, window, width // window, window, c)
    return grid.transpose(2, 3).reshape(b, -1, window * window, c)


def from_windows(cells: Tensor, window: int, size: tuple[int, int]) -> Tensor:
    """The inverse of `to_windows`."""
    b, _, _, c = cells.shape
    grid = cells.view(b, size[0] // window, size[1] // window, window, window, c)
    return grid.transpose(2, 3).reshape(b, size[0], size[1], c)
