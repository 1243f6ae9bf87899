"""Build the network that the configuration of a tower names, with random weights."""

from functools import partial
from pathlib import Path
from typing import Any

import timm
from timm.layers import GroupNorm, PatchDropout
from torch import Tensor, nn

from trainer.encoders.config import OPEN_CLIP, PAPER_VITS, TRANSFORMERS, ImageConfig, TextConfig
from trainer.encoders.image import paper_vit
from trainer.encoders.text import TextEncoder, TextTower

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
    """Build a module from images [b 3 h w] to features [b w], with w in `num_features`.

    Raises ValueError if `kwargs` contains a forbidden argument, if open_clip has no such model, or for `patch_dropout`
    of a network without patches.
    """
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
    return with_patch_dropout(
        timm.create_model(config.name, pretrained=False, num_classes=0, **kwargs), config.patch_dropout
    )


def timm_state(config: ImageConfig) -> dict[str, Tensor]:
    """Return the state of a timm network from the file `weights`, converted by timm: positions fit the image size.

    Only tensors are unpickled. Raises OSError and the errors of timm for a file that does not fit.
    """
    if not config.weights or not Path(config.weights).is_file():
        raise FileNotFoundError(f"{config.weights} does not exist; give a weight file in timm's layout")
    overlay = {"file": config.weights, "custom_load": False}
    kwargs = {key: value for key, value in config.kwargs.items() if key not in ("norm_groups", *FORBIDDEN_KWARGS)}
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
    """Build a module from token ids [b l] to features [b w], with w in `num_features`.

    Raises ValueError if open_clip has no such model, or if the text tower of that or of transformers is not supported.
    """
    if config.name is None:
        return TextEncoder(config)
    if config.name == TRANSFORMERS:
        from trainer.encoders.transformers_text import TransformersText  # importing transformers takes seconds

        return TransformersText(config)
    from trainer.encoders.open_clip_towers import OpenClipText  # importing open_clip takes seconds

    return OpenClipText(config)
