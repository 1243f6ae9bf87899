"""Towers of open_clip's models. Their projections are removed, because the trainer's models add their own.

Shapes: b images or texts, l tokens, w width. Parameter names are open_clip's. Importing open_clip takes seconds, so
this module is imported only if a configuration selects such a tower.
"""

from dataclasses import asdict, replace
from typing import Any

import open_clip
import torch.nn.functional as F
from open_clip.transformer import text_global_pool
from torch import Tensor, nn

from trainer.encoders.config import OPEN_CLIP, TextConfig
from trainer.encoders.text import StateSource, TextTower, TokenStates

SIZES = ("vocab_size", "context_length", "width", "layers", "heads")
OTHER_TOKENIZER_KEYS = ("hf_model_name", "hf_tokenizer_name", "tokenizer_mode", "tokenizer_kwargs")
CONFIGS = {"vision_cfg": open_clip.CLIPVisionCfg, "text_cfg": open_clip.CLIPTextCfg}
NO_DIFFERENCE = ("image_size", "output_tokens", "timm_model_pretrained")
"""Fields that do not change a network here: the size of images is `size_px`."""


def architecture(tower: str, name: str) -> dict[str, Any]:
    """Return open_clip's configuration of a model.

    Args:
        tower: "image" or "text", for messages.
        name: open_clip/NAME, or NAME.

    Returns:
        `embed_dim`, `vision_cfg`, `text_cfg` and, of some models, `quick_gelu`; a copy.

    Raises:
        ValueError: open_clip does not list the model, so it would look for it on the network.
    """
    model_name = name.removeprefix(OPEN_CLIP)
    if model_name not in open_clip.list_models():  # excludes names that open_clip would download
        raise ValueError(f"{tower}.name {name}: open_clip has no such model; see open_clip.list_models()")
    config: dict[str, Any] = open_clip.get_model_config(model_name)
    return config


def vision_config(name: str, size_px: int, kwargs: dict[str, Any]) -> open_clip.CLIPVisionCfg:
    """Return the configuration of an image tower, with its own settings replaced by `size_px` and `kwargs`.

    Args:
        name: open_clip/NAME.
        size_px: side of the square images, in pixels.
        kwargs: fields of open_clip's `CLIPVisionCfg`; they win over everything else.

    Returns:
        The configuration, which downloads no weights of timm.

    Raises:
        ValueError: open_clip does not list the model. TypeError passes through for a field that it does not have.
    """
    overrides = {"timm_model_pretrained": False, "image_size": size_px, "output_tokens": False}
    return open_clip.CLIPVisionCfg(**{**architecture("image", name)["vision_cfg"], **overrides, **kwargs})


def text_config(name: str, kwargs: dict[str, Any]) -> open_clip.CLIPTextCfg:
    """Return the configuration of a text tower.

    Args:
        name: open_clip/NAME.
        kwargs: fields of open_clip's `CLIPTextCfg` that replace those of the architecture.

    Returns:
        The configuration with open_clip's own sizes, or those in `kwargs`.

    Raises:
        ValueError: open_clip does not list the model, the tower has another tokenizer than CLIP's, or it appends a
            class token (CoCa).
    """
    config = {**architecture("text", name)["text_cfg"], **kwargs}
    other = next((key for key in OTHER_TOKENIZER_KEYS if config.get(key)), None)
    if other:
        raise ValueError(
            f"text.name {name}: the tower needs another tokenizer ({other} {config[other]}); give one that uses CLIP's"
        )
    if config.get("embed_cls"):
        raise ValueError(
            f"text.name {name}: the tower appends a class token (CoCa), which is not supported; give another model"
        )
    return open_clip.CLIPTextCfg(**config)


def architecture_sizes(image: str | None, text: str | None, kwargs: Any = None) -> dict[str, dict[str, int]]:
    """Return the sizes of open_clip towers as settings of a model.

    Args:
        image: `model.image.name`, if it is set.
        text: `model.text.name`, if it is set.
        kwargs: `model.text.kwargs`, if they are set.

    Returns:
        Groups `image` (`size_px`) and `text` (SIZES), each only if its tower is open_clip/NAME.

    Raises:
        ValueError: open_clip does not list the model, or its text tower is not supported.
    """
    sizes: dict[str, dict[str, int]] = {}
    if image and image.startswith(OPEN_CLIP):
        sizes["image"] = {"size_px": architecture("image", image)["vision_cfg"].get("image_size", 224)}
    if text and text.startswith(OPEN_CLIP):
        config = text_config(text, kwargs or {})
        sizes["text"] = {name: getattr(config, name) for name in SIZES}
    return sizes


def image_tower(name: str, size_px: int, kwargs: dict[str, Any]) -> nn.Module:
    """Build an image tower with random weights, from [b 3 h w] to [b w] before the projection; `num_features` is w.

    `projection_keys` are the names of the removed entries of its state dict. The attention pools of ResNets and of
    timm's networks include the projection: there w is open_clip's embed_dim, and nothing is removed.
    """
    config = architecture("image", name)
    minimal_text = open_clip.CLIPTextCfg(vocab_size=1, width=1, heads=1, layers=1)
    quick_gelu, embed_dim = config.get("quick_gelu", False), config["embed_dim"]
    vision = vision_config(name, size_px, kwargs)
    tower: Any = open_clip.CLIP(embed_dim, vision, minimal_text, quick_gelu=quick_gelu).visual
    entries = tower.state_dict().keys()
    if hasattr(tower, "trunk"):  # a network of timm
        width = remove_timm_projection(tower, embed_dim)
    elif hasattr(tower, "proj"):  # a vision transformer
        width, tower.proj = len(tower.proj), None
    else:  # a ResNet
        width = embed_dim
    tower.num_features, tower.projection_keys = width, entries - tower.state_dict().keys()
    return tower


def remove_timm_projection(tower: Any, embed_dim: int) -> int:
    """Remove the projection (a layer, an MLP or the classifier of timm's network) and return the width before it."""
    head = tower.head
    if hasattr(head, "proj"):
        width = head.proj.in_features
        del head.proj
    elif hasattr(head, "mlp"):
        width = head.mlp.fc1.in_features
        del head.mlp
    elif hasattr(head, "pool"):
        width = embed_dim
    else:
        tower.trunk.reset_classifier(0)
        width = getattr(tower.trunk, "head_hidden_size", None) or tower.trunk.num_features
    return int(width)


class OpenClipText(TextTower):
    """The text transformer of an open_clip model, before its projection.

    If a causal mask hides the padding, batches are padded only to their longest text; otherwise to the full context,
    as open_clip's tokenizer does.

    Args:
        config: settings with `name` open_clip/NAME. With `stretch_after`, the context may differ from open_clip's.

    Raises:
        ValueError: the tower is not supported (`text_config`), or the sizes in `config` differ from its own.
    """

    attn_mask: Tensor | None
    positions = "positional_embedding"

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        assert config.name
        model, text = architecture("text", config.name), text_config(config.name, config.kwargs)
        if config.stretch_after is not None:
            text = replace(text, context_length=config.context_length)
        differing = [name for name in SIZES if getattr(config, name) != getattr(text, name)]
        if differing:
            settings = " ".join(f"model.text.{name}={getattr(text, name)}" for name in differing)
            raise ValueError(f"text.name {config.name}: the sizes differ from the architecture's; set {settings}")
        minimal_image = open_clip.CLIPVisionCfg(layers=1, width=1, head_width=1, patch_size=1, image_size=1)
        tower = open_clip.CustomTextCLIP(model["embed_dim"], minimal_image, text, model.get("quick_gelu", False)).text
        self.num_features, self.context_length = text.width, text.context_length
        self.embedding_noise = config.embedding_noise
        self.pool_type, self.eos_id = tower.pool_type, tower.eos_id
        self.token_embedding = tower.token_embedding
        self.positional_embedding = tower.positional_embedding
        self.transformer = tower.transformer
        self.ln_final = tower.ln_final
        self.register_buffer("attn_mask", tower.attn_mask, persistent=False)
        self.needs_full_context = tower.attn_mask is None or tower.pool_type == "last"
        self.projection_keys = {f"text_projection{suffix}" for suffix in ("", ".weight", ".bias")}

    def pad_tokens(self, token_ids: Tensor) -> Tensor:
        if not self.needs_full_context:
            return token_ids
        return F.pad(token_ids, (0, self.context_length - token_ids.shape[1]))

    def hidden_states(self, token_ids: Tensor, source: StateSource | None) -> TokenStates:
        source = source or StateSource()
        length = token_ids.shape[1]
        initial = x = self.with_noise(self.token_embedding(token_ids)) + self.positional_embedding[:length]
        contextual, mask = x, None if self.attn_mask is None else self.attn_mask[:length, :length]
        for index, block in enumerate(self.transformer.resblocks):
            before, x = x, block(x, attn_mask=mask)
            if source.kind == "block" and index == source.block:
                initial, contextual = before, x
        final = self.ln_final(x)
        pooled = text_global_pool(final, token_ids, self.pool_type, self.eos_id)
        return TokenStates(pooled, initial, final if source.kind == "tower" else contextual)


def differences(config: Any, saved: dict[str, Any]) -> dict[str, Any]:
    """Compare the configuration of a tower with a saved one.

    Args:
        config: a dataclass of open_clip, such as `CLIPTextCfg`.
        saved: values of the other one by field; missing ones have open_clip's defaults.

    Returns:
        The values of the saved one by field, of the fields that differ. Those of `NO_DIFFERENCE` are left out.

    Raises:
        TypeError: `saved` has a key that is no field.
    """
    own, other = asdict(config), asdict(type(config)(**saved))
    return {key: value for key, value in other.items() if value != own[key] and key not in NO_DIFFERENCE}


def nearest_architecture(model: dict[str, Any]) -> tuple[str, dict[str, dict[str, Any]]]:
    """Describe a configuration of open_clip by the listed architecture with the fewest other fields.

    Args:
        model: `vision_cfg`, `text_cfg` and, of some models, `quick_gelu`.

    Returns:
        open_clip/NAME, and for "vision_cfg" and "text_cfg" the fields with other values, which are `kwargs` of a tower.

    Raises:
        ValueError: no architecture has its `timm_model_name` and `quick_gelu`.
        TypeError: a configuration has a key that is no field.
    """
    wanted = model["vision_cfg"].get("timm_model_name"), bool(model.get("quick_gelu"))
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name in open_clip.list_models():
        listed = architecture("image", name)
        if (listed["vision_cfg"].get("timm_model_name"), bool(listed.get("quick_gelu"))) == wanted:
            found[name] = {key: differences(kind(**listed[key]), model[key]) for key, kind in CONFIGS.items()}
    if not found:
        raise ValueError(
            f"vision_cfg.timm_model_name is {wanted[0]!r}, quick_gelu {wanted[1]}: no model of open_clip has both"
        )
    best = min(found, key=lambda name: sum(map(len, found[name].values())))
    return f"{OPEN_CLIP}{best}", found[best]
