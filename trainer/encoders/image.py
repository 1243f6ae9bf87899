"""The vision transformer of the papers: one feature vector per image.

Shapes: b images, w width of the tower.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn


def paper_vit(size_px: int, embed_dim: int, depth: int, num_heads: int, patch_size: int = 16) -> VisionTransformer:
    """Build the vision transformer of MERU and its successors: class token, LayerNorm eps 1e-5, fixed positions."""
    vit = VisionTransformer(
        img_size=size_px,
        patch_size=patch_size,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
        num_classes=0,
        norm_layer=partial(nn.LayerNorm, eps=1e-5),  # timm's default is 1e-6
        block_fn=lambda **kwargs: (ClassTokenBlock if kwargs["depth"] == depth - 1 else Block)(**kwargs),  # type: ignore[arg-type]
    )
    # A parameter although it is not trained, because the released state dicts contain it.
    vit.pos_embed = nn.Parameter(sincos_positions(size_px // patch_size, embed_dim), requires_grad=False)
    return vit


class ClassTokenBlock(Block):
    """The last block, computed only for the class token [b 1 w], since no other output is used: a sixth of the work.

    Keys and values are computed for all tokens; the query, the projection and the MLP for the class token only.
    """

    attn: Any
    mlp: Any
    norm1: Any
    norm2: Any

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if attn_mask is not None or is_causal:
            raise ValueError("the papers' vision transformer does not support attention masks")
        normed, qkv, w = self.norm1(x), self.attn.qkv, x.shape[-1]
        query = F.linear(normed[:, :1], qkv.weight[:w], qkv.bias[:w])
        key, value = F.linear(normed, qkv.weight[w:], qkv.bias[w:]).chunk(2, dim=-1)
        q, k, v = (part.unflatten(-1, (self.attn.num_heads, -1)).transpose(1, 2) for part in (query, key, value))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x[:, :1] + self.attn.proj(mixed)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


def sincos_positions(side: int, width: int) -> Tensor:
    """Return fixed position embeddings [1 1+side*side width] of a square grid (MoCo v3, section 4).

    The first one, of the class token, is zero. Channels are [sin row, cos row, sin column, cos column] at width/4
    wavelengths from 2 pi to 10000 * 2 pi. Raises ValueError if `width` is not a multiple of 4.
    """
    if width % 4:
        raise ValueError(f"embed_dim is {width}; give a multiple of 4 for sine-cosine positions")
    quarter = width // 4
    frequencies = 10000.0 ** -(torch.arange(quarter, dtype=torch.float32) / quarter)
    angles = torch.arange(side, dtype=torch.float32)[:, None] * frequencies
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)  # [side width/2]
    rows = waves[:, None].expand(side, side, -1)
    columns = waves[None, :].expand(side, side, -1)
    grid = torch.cat([rows, columns], dim=2).reshape(1, side * side, width)
    return torch.cat([torch.zeros(1, 1, width), grid], dim=1)
