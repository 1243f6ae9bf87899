"""The network that a tower's name means, without weights, whatever the configuration says of them."""

from functools import partial

import timm
from timm.layers import GroupNorm
from torch import nn

from trainer.encoders.config import OPEN_CLIP, PAPER_VITS, ImageConfig, TextConfig
from trainer.encoders.image import paper_vit
from trainer.encoders.text import TextEncoder, TextTower

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


def build_image_encoder(config: ImageConfig) -> nn.Module:
    """A module from [b 3 h w] to [b w]; `num_features` is w."""
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


def build_text_encoder(config: TextConfig) -> TextTower:
    """A module from token ids [b l] to [b w]; `num_features` is w."""
    if config.name is None:
        return TextEncoder(config)
    from trainer.encoders.open_clip_towers import OpenClipText  # importing open_clip takes seconds

    return OpenClipText(config)
