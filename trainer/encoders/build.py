"""Build the network that the configuration of a tower names, with random weights; the papers' vision transformer."""

from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.layers import GroupNorm, PatchDropout
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from trainer.encoders.cached import CachedImage, CachedText
from trainer.encoders.config import CACHED, OPEN_CLIP, PAPER_VITS, TRANSFORMERS, ImageConfig, TextConfig
from trainer.encoders.text import TextEncoder, TextTower

# The vision transformer of the papers: one feature vector per image.
#
# Shapes: b images, w width of the tower.


def paper_vit(
    size_px: int, embed_dim: int, depth: int, num_heads: int, patch_size: int = 16, learned_positions: bool = False
) -> VisionTransformer:
    """Build the vision transformer of MERU and its successors: class token, LayerNorm eps 1e-5, fixed positions.

    Its output is the last state of the class token, before any projection (MERU, section 4.1; HyCoCLIP, appendix B).

    Args:
        size_px: side of the square images, in pixels.
        embed_dim: width w; a multiple of `num_heads`, and of 4 for fixed positions.
        depth: number of blocks.
        num_heads: attention heads of each block.
        patch_size: side of a patch, in pixels.
        learned_positions: train the position embeddings, as SLIP's ViT does (MERU, table 5), instead of fixing them to
            sines and cosines.

    Returns:
        A module from normalised images [b 3 size_px size_px] to features [b w], with random weights.

    Raises:
        ValueError: `embed_dim` is no multiple of 4, and positions are fixed.
    """
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
    if not learned_positions:
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
    has_all_tokens = False  # all tokens are used (keep_patches)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if attn_mask is not None or is_causal:
            raise ValueError("the papers' vision transformer does not support attention masks")
        if self.has_all_tokens:
            all_tokens: Tensor = super().forward(x)
            return all_tokens
        normed, qkv, w = self.norm1(x), self.attn.qkv, x.shape[-1]
        query = F.linear(normed[:, :1], qkv.weight[:w], qkv.bias[:w])
        key, value = F.linear(normed, qkv.weight[w:], qkv.bias[w:]).chunk(2, dim=-1)
        q, k, v = (part.unflatten(-1, (self.attn.num_heads, -1)).transpose(1, 2) for part in (query, key, value))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x[:, :1] + self.attn.proj(mixed)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


def keep_patches(tower: Any) -> None:
    """Make a network of timm compute all patches to the end, for models that use them (Hyper3-CLIP).

    Args:
        tower: an image tower of `build_image_encoder`; the last block of the papers' ViT is changed in place.

    Raises:
        ValueError: the tower is no network of timm, such as one of open_clip.
    """
    if not hasattr(tower, "forward_head"):
        raise ValueError("the patches of images are pooled, but the image tower has none; give one of timm")
    last = getattr(tower, "blocks", [None])[-1]
    if isinstance(last, ClassTokenBlock):
        last.has_all_tokens = True


def patches_of(tower: Any, tokens: Tensor) -> Tensor:
    """Return the patches among the tokens of a network of timm, or the cells of its feature maps.

    Args:
        tower: the network, or a head; `num_prefix_tokens` of a transformer and `num_features` of others are read.
        tokens: result of its `forward_features`: tokens [b l w], or maps [b w h w'] or [b h w' w].

    Returns:
        States [b p w]: p = l minus the prefix tokens, such as the class token, or p = h * w', row by row.
    """
    if tokens.ndim == 3:
        return tokens[:, getattr(tower, "num_prefix_tokens", 0) :]
    return (tokens if tokens.shape[1] == tower.num_features else tokens.movedim(-1, 1)).flatten(2).mT


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


# Arguments of `timm.create_model` that read files or access the network. They are refused, because a configuration
# may come with downloaded weights and is not trusted.
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


def build_image_encoder(config: ImageConfig) -> nn.Module:
    """Build an image tower with random weights.

    Args:
        config: the tower; `name` selects a ViT of the papers, a network of timm or open_clip, or a head over cached
            features. `weights` and `frozen` are not used here.

    Returns:
        A module from normalised images [b 3 h w], for a head also from stored features [b f], to features [b w]. Its
            `num_features` is w.

    Raises:
        ValueError: `kwargs` has an argument that would read files or the network (FORBIDDEN_KWARGS), open_clip has no
            such model, `patch_dropout` is set for a network without patches, or a head has no possible size.
    """
    if config.name == CACHED:
        return CachedImage(config.kwargs)
    if config.name in PAPER_VITS:
        vit = paper_vit(config.size_px, **{**PAPER_VITS[config.name], **config.kwargs})
        return with_patch_dropout(vit, config.patch_dropout)
    kwargs = dict(config.kwargs)
    forbidden = sorted(set(kwargs) & set(FORBIDDEN_KWARGS))
    if forbidden:
        raise ValueError(f"image.kwargs.{forbidden[0]} is not allowed; remove it, and load weights with init")
    if config.name.startswith(OPEN_CLIP):
        from trainer.encoders.open_clip_towers import image_tower  # importing open_clip takes seconds

        return with_patch_dropout(image_tower(config.name, config.size_px, kwargs), config.patch_dropout)
    if "norm_groups" in kwargs:
        kwargs["norm_layer"] = partial(GroupNorm, num_groups=kwargs.pop("norm_groups"))
    if "norm_eps" in kwargs:
        kwargs["norm_layer"] = partial(nn.LayerNorm, eps=kwargs.pop("norm_eps"))
    return with_patch_dropout(
        timm.create_model(config.name, pretrained=False, num_classes=0, **kwargs), config.patch_dropout
    )


def timm_state(config: ImageConfig) -> dict[str, Tensor]:
    """Return the state of a timm network from the file `weights`, converted by timm: positions fit the image size.

    Only tensors are unpickled.

    Args:
        config: the tower, whose `weights` is a safetensors or .pth file in timm's layout.

    Returns:
        The state dict of `build_image_encoder(config)`; a classifier in the file is left out.

    Raises:
        FileNotFoundError: the file does not exist. Errors of timm pass through if its contents do not fit.
    """
    if not config.weights or not Path(config.weights).is_file():
        raise FileNotFoundError(f"{config.weights} does not exist; give a weight file in timm's layout")
    overlay = {"file": config.weights, "custom_load": False}
    kwargs = {
        key: value for key, value in config.kwargs.items() if key not in ("norm_groups", "norm_eps", *FORBIDDEN_KWARGS)
    }
    network = timm.create_model(config.name, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=0, **kwargs)
    state: dict[str, Tensor] = network.state_dict()
    return state


def with_patch_dropout(tower: nn.Module, share: float) -> nn.Module:
    """Make a vision transformer leave out a share of its patches while training (Li et al. 2023, arXiv 2212.00794).

    Its prefix tokens, such as the class token, stay. Raises ValueError for networks that do not support it.
    """
    if not share:
        return tower
    network: Any = getattr(tower, "trunk", tower)  # open_clip nests the networks of timm
    places = ("patch_drop", "patch_dropout")  # timm's and open_clip's
    name = next((name for name in places if isinstance(getattr(network, name, None), nn.Identity)), None)
    if name is None:
        raise ValueError(
            "image.patch_dropout is for plain vision transformers; set it to 0, or give the network's own argument, such "
            "as model.image.kwargs={patch_drop_rate: 0.5}"
        )
    setattr(network, name, PatchDropout(share, num_prefix_tokens=getattr(network, "num_prefix_tokens", 1)))
    return tower


def build_text_encoder(config: TextConfig) -> TextTower:
    """Build a text tower with random weights.

    Args:
        config: the tower; `name` selects the papers' transformer (None), one of open_clip or transformers, or a head
            over cached features. `weights` and `frozen` are not used here.

    Returns:
        A module from token ids [b l] to features [b w]; `num_features` is w.

    Raises:
        ValueError: open_clip or transformers has no such tower, it is not supported (another tokenizer than CLIP's in
            open_clip, no token ids in transformers), or the sizes in `config` differ from its own.
    """
    if config.name is None:
        return TextEncoder(config)
    if config.name == CACHED:
        return CachedText(config)
    if config.name == TRANSFORMERS:
        from trainer.encoders.transformers_text import TransformersText  # importing transformers takes seconds

        return TransformersText(config)
    from trainer.encoders.open_clip_towers import OpenClipText  # importing open_clip takes seconds

    return OpenClipText(config)
