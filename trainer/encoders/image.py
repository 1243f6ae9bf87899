"""Image towers: the papers' vision transformer, or any network of timm or open_clip, to one feature vector an image.

Shapes: b images, w width of the tower.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.layers import GroupNorm
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from common.errors import UserError
from common.load import check_positive
from trainer.encoders.text import OPEN_CLIP

# The papers' sizes (MERU, appendix: the small one has 12 heads, as MoCo v3's, where timm's own has 6).
PAPER_VITS: dict[str, dict[str, int]] = {
    "vit_small": {"embed_dim": 384, "depth": 12, "num_heads": 12},
    "vit_base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "vit_large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
}

# Arguments of `timm.create_model` that reach for files or the network; a configuration beside weights is not trusted
# with them.
FORBIDDEN_KWARGS = (
    "pretrained",
    "checkpoint_path",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "cache_dir",
    "features_only",
    "timm_model_name",
    "timm_model_pretrained",
)


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """An image tower. `name` is one of the papers' (vit_small, vit_base, vit_large), a model of timm, or open_clip/NAME.

    `kwargs` go to the network's constructor (open_clip: its `vision_cfg`); `norm_groups` among them makes every norm of a timm
    network a GroupNorm. Weights that were trained elsewhere expect the pixels of that training: `pixel_mean`, `pixel_std`.
    """

    # network of the image tower: the papers' vit_small, vit_base or vit_large, a network of timm, or open_clip/NAME
    name: str = "vit_small"
    # weights of an open_clip/NAME tower to start from: a file, a folder, or a tag of open_clip; none: random ones
    weights: str | None = None
    size_px: int = 224  # side of the square image that the tower sees, in pixels
    frozen: bool = False  # whether the image tower keeps the weights it starts with; its projection learns all the same
    # further arguments for the constructor of the network, such as {img_size: 64} where timm's has to be told size_px
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_positive(self, "size_px")
        if not (self.name in PAPER_VITS or self.name.startswith(OPEN_CLIP) or timm.is_model(self.name)):
            raise UserError(
                f"name is {self.name!r}, which is neither one of {', '.join(PAPER_VITS)} nor a model of timm, nor {OPEN_CLIP}NAME"
            )


def build_image_encoder(config: ImageConfig) -> nn.Module:
    """A module from [b 3 h w] to [b w], without weights; `num_features` is w."""
    if config.name in PAPER_VITS:
        return paper_vit(config.size_px, **{**PAPER_VITS[config.name], **config.kwargs})
    kwargs = dict(config.kwargs)
    forbidden = sorted(set(kwargs) & set(FORBIDDEN_KWARGS))
    if forbidden:
        raise ValueError(f"image.kwargs.{forbidden[0]} is not allowed: weights come from the checkpoint alone")
    if config.name.startswith(OPEN_CLIP):
        from trainer.encoders.open_clip_towers import image_tower  # importing open_clip takes seconds

        return image_tower(config.name, config.size_px, kwargs)
    if "norm_groups" in kwargs:
        kwargs["norm_layer"] = partial(GroupNorm, num_groups=kwargs.pop("norm_groups"))
    return timm.create_model(config.name, pretrained=False, num_classes=0, **kwargs)


def paper_vit(size_px: int, embed_dim: int, depth: int, num_heads: int, patch_size: int = 16) -> VisionTransformer:
    """The vision transformer of MERU and its descendants: class token, LayerNorm eps 1e-5, fixed positions."""
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
    # A parameter, though it never learns: it belongs to the released state dicts.
    vit.pos_embed = nn.Parameter(sincos_positions(size_px // patch_size, embed_dim), requires_grad=False)
    return vit


class ClassTokenBlock(Block):
    """The last block, of which nothing is read but the class token [b 1 w]: its numbers for a sixth of the work.

    Keys and values come from all tokens; the query, the projection and the MLP from one.
    """

    attn: Any
    mlp: Any
    norm1: Any
    norm2: Any

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if attn_mask is not None or is_causal:
            raise ValueError("the papers' vision transformer has no masks")
        normed, qkv, w = self.norm1(x), self.attn.qkv, x.shape[-1]
        query = F.linear(normed[:, :1], qkv.weight[:w], qkv.bias[:w])
        key, value = F.linear(normed, qkv.weight[w:], qkv.bias[w:]).chunk(2, dim=-1)
        q, k, v = (part.unflatten(-1, (self.attn.num_heads, -1)).transpose(1, 2) for part in (query, key, value))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x[:, :1] + self.attn.proj(mixed)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


def sincos_positions(side: int, width: int) -> Tensor:
    """Fixed positions [1 1+side*side width] of a square grid, the class token's zero (MoCo v3, section 4).

    Channels are [sin row, cos row, sin column, cos column] at width/4 wavelengths from 2 pi to 10000 * 2 pi.
    """
    if width % 4:
        raise ValueError(f"embed_dim {width} must be a multiple of 4 for sine-cosine positions")
    quarter = width // 4
    frequencies = 10000.0 ** -(torch.arange(quarter, dtype=torch.float32) / quarter)
    angles = torch.arange(side, dtype=torch.float32)[:, None] * frequencies
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)  # [side width/2]
    rows = waves[:, None].expand(side, side, -1)
    columns = waves[None, :].expand(side, side, -1)
    grid = torch.cat([rows, columns], dim=2).reshape(1, side * side, width)
    return torch.cat([torch.zeros(1, 1, width), grid], dim=1)
