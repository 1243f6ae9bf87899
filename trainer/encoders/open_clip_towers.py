"""Towers of open_clip's models, each without its projection into open_clip's own space: ours takes that place.

Shapes: b images or texts, l tokens, w width. Parameter names are open_clip's. Importing it takes seconds; only who asks for such a
tower does.
"""

from dataclasses import fields
from typing import Any

import open_clip
import torch.nn.functional as F
from open_clip.modified_resnet import ModifiedResNet
from open_clip.timm_model import TimmModel
from open_clip.transformer import VisionTransformer, text_global_pool
from torch import Tensor, nn

from trainer.encoders.config import OPEN_CLIP, TextConfig
from trainer.encoders.text import StateSource, TextTower

SIZES = ("vocab_size", "context_length", "width", "layers", "heads")
ANOTHER_TOKENIZER = ("hf_model_name", "hf_tokenizer_name", "tokenizer_mode", "tokenizer_kwargs")


def architecture(tower: str, name: str) -> dict[str, Any]:
    """`embed_dim`, `vision_cfg`, `text_cfg`, `quick_gelu` of open_clip/NAME, which image.name or text.name holds."""
    known = name.removeprefix(OPEN_CLIP)
    if known not in open_clip.list_models():  # which leaves out what would be fetched
        raise ValueError(f"{tower}.name {name}: no model of open_clip; see open_clip.list_models()")
    found: dict[str, Any] = open_clip.get_model_config(known)
    return found


def vision_config(name: str, size_px: int, kwargs: dict[str, Any]) -> open_clip.CLIPVisionCfg:
    whole = {"timm_model_pretrained": False, "image_size": size_px, "output_tokens": False}
    return open_clip.CLIPVisionCfg(**{**architecture("image", name)["vision_cfg"], **whole, **kwargs})


def text_config(name: str) -> open_clip.CLIPTextCfg:
    """Raises ValueError for the towers that do not read CLIP's byte pairs, and for CoCa's."""
    config = architecture("text", name)["text_cfg"]
    other = next((key for key in ANOTHER_TOKENIZER if config.get(key)), None)
    if other:
        raise ValueError(f"text.name {name}: it reads another tokenizer's tokens ({other} {config[other]}), not CLIP's")
    if config.get("embed_cls"):
        raise ValueError(f"text.name {name}: it appends a token of its own (CoCa); take that of another model")
    return open_clip.CLIPTextCfg(**config)


def own_sizes(image: str | None, text: str | None) -> dict[str, dict[str, int]]:
    """`image` and `text` fields of a model's configuration as the architectures have them; other names say nothing."""
    found: dict[str, dict[str, int]] = {}
    if image and image.startswith(OPEN_CLIP):
        found["image"] = {"size_px": architecture("image", image)["vision_cfg"].get("image_size", 224)}
    if text and text.startswith(OPEN_CLIP):
        config = text_config(text)
        found["text"] = {size: getattr(config, size) for size in SIZES}
    return found


def image_tower(name: str, size_px: int, kwargs: dict[str, Any]) -> nn.Module:
    """[b 3 h w] to [b w] before the projection, without weights; `num_features` is w.

    `projection` are the names of the entries left out. Attention pools of ResNets and of timm's networks project by
    themselves: there w is open_clip's embed_dim, and nothing is left out.
    """
    found = architecture("image", name)
    no_text = open_clip.CLIPTextCfg(vocab_size=1, width=1, heads=1, layers=1)
    quick_gelu, embed_dim = found.get("quick_gelu", False), found["embed_dim"]
    vision = vision_config(name, size_px, kwargs)
    tower: Any = open_clip.CLIP(embed_dim, vision, no_text, quick_gelu=quick_gelu).visual
    entries = tower.state_dict().keys()
    match tower:
        case VisionTransformer():
            width, tower.proj = len(tower.proj), None
        case ModifiedResNet():
            width = embed_dim
        case TimmModel():
            width = drop_timm_projection(tower, embed_dim)
    tower.num_features, tower.projection = width, entries - tower.state_dict().keys()
    return tower


def drop_timm_projection(tower: Any, embed_dim: int) -> int:
    """The width of what is left: open_clip projects with a layer, with an MLP, or with the classifier of timm's network."""
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
    """The text transformer of a model of open_clip, before its projection.

    Where a causal mask hides the padding, batches stay padded to their own longest text; else they are padded to the
    whole context, as open_clip's tokenizer does.
    """

    attn_mask: Tensor | None

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        assert config.name
        found, text = architecture("text", config.name), text_config(config.name)
        wrong = [
            f"model.text.{size}={getattr(text, size)}" for size in SIZES if getattr(config, size) != getattr(text, size)
        ]
        if wrong:
            raise ValueError(f"text.name {config.name}: its sizes are others; set {' '.join(wrong)}")
        no_image = open_clip.CLIPVisionCfg(layers=1, width=1, head_width=1, patch_size=1, image_size=1)
        tower = open_clip.CustomTextCLIP(found["embed_dim"], no_image, text, found.get("quick_gelu", False)).text
        self.num_features, self.context_length = text.width, text.context_length
        self.pool_type, self.eos_id = tower.pool_type, tower.eos_id
        self.token_embedding = tower.token_embedding
        self.positional_embedding = tower.positional_embedding
        self.transformer = tower.transformer
        self.ln_final = tower.ln_final
        self.register_buffer("attn_mask", tower.attn_mask, persistent=False)
        self.whole_context = tower.attn_mask is None or tower.pool_type == "last"
        self.projection = {f"text_projection{part}" for part in ("", ".weight", ".bias")}

    def padded(self, token_ids: Tensor) -> Tensor:
        return F.pad(token_ids, (0, self.context_length - token_ids.shape[1])) if self.whole_context else token_ids

    def pool(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        sentence: Tensor = text_global_pool(hidden, token_ids, self.pool_type, self.eos_id)
        return sentence

    def walk(self, token_ids: Tensor, places: StateSource) -> tuple[Tensor, Tensor, Tensor]:
        length = token_ids.shape[1]
        initial = x = self.token_embedding(token_ids) + self.positional_embedding[:length]
        contextual, mask = x, None if self.attn_mask is None else self.attn_mask[:length, :length]
        for index, block in enumerate(self.transformer.resblocks):
            before, x = x, block(x, attn_mask=mask)
            if places.kind == "block" and index == places.block:
                initial, contextual = before, x
        hidden = self.ln_final(x)
        return initial, hidden if places.kind == "tower" else contextual, hidden


def differing(config: Any, saved: dict[str, Any], unless: tuple[str, ...]) -> str | None:
    """The first field of a tower's configuration that is another in a saved one."""
    theirs = type(config)(**saved)
    names = [field.name for field in fields(config) if field.name not in unless]
    return next((name for name in names if getattr(config, name) != getattr(theirs, name)), None)
