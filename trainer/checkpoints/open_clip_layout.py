"""Convert models to open_clip's layout and back, and read models of open_clip as a CLIP.

An exported folder holds what `open_clip.create_model("local-dir:FOLDER")` loads: open_clip_config.json and
open_clip_model.safetensors, with both towers and their projections. The features there are those before the lift. What
open_clip's layout cannot hold is kept beside them for the way back: curvatures, scales, pixel statistics, and the bias of
the patches of the papers' vision transformers, which open_clip's lack; there it is added to the position embeddings.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import torch

from hypergrit_common.errors import UserError
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.urls import clean
from hypergrit_common.weights import read_tensors, save_tensors
from trainer.checkpoints.hyper3 import FolderParts
from trainer.checkpoints.skeleton import skeleton
from trainer.checkpoints.tokenizer_files import is_openai
from trainer.checkpoints.towers import OPEN_CLIP_WEIGHTS, plain_settings, weights_file
from trainer.data.preprocess import PreprocessConfig
from trainer.encoders.config import OPEN_CLIP, PAPER_VITS, TRANSFORMERS, TextConfig
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import model_name, parse_config
from trainer.text.base import TextTokenizer
from trainer.text.tokenizer import openai_tokenizer

CONFIG_FILE: Final = "open_clip_config.json"
REST_FILE: Final = "hypergrit.safetensors"
KEY: Final = "hypergrit"
"""Key of open_clip_config.json with the model's settings; open_clip ignores it."""
PATCH_BIAS: Final = "visual.patch_embed.proj.bias"
POSITIONS: Final = "visual.pos_embed"
PROJECTIONS: Final = {"visual.proj", "text_projection"}
"""Matrices of open_clip that are the transposes of ours."""
VIT_NAMES: Final = {
    "cls_token": "class_embedding",
    "patch_embed.proj.weight": "conv1.weight",
    "norm.weight": "ln_post.weight",
    "norm.bias": "ln_post.bias",
}
MODEL_KEYS: Final = {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu", "custom_text", "init_logit_scale"}
"""Keys of open_clip's `model_cfg` that a CLIP here may have."""
Values = dict[tuple[str, str], tuple[Any, ...]]
POSSIBLE: Final[Values] = {
    ("text_cfg", "vocab_size"): (TextConfig.vocab_size,),
    ("text_cfg", "embed_cls"): (False,),
    ("text_cfg", "proj_type"): ("linear",),
    ("text_cfg", "proj_bias"): (False,),
    ("vision_cfg", "timm_proj"): ("linear", "none", "", None),
    ("preprocess_cfg", "interpolation"): ("bicubic", "random"),
    ("preprocess_cfg", "resize_mode"): ("shortest", "squash"),
}
"""Values of its fields that a CLIP here may have."""
BLOCK_NAMES: Final = {
    "norm1": "ln_1",
    "attn.qkv.": "attn.in_proj_",
    "attn.proj": "attn.out_proj",
    "norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
"""Beginnings of names within a block of a vision transformer."""


def export_model(
    folder: Path, model: DualEncoder, tokenizer: TextTokenizer, preprocess: PreprocessConfig, record: dict[str, Any]
) -> None:
    """Write a model in open_clip's layout. The arguments are those of `save_model`.

    Raises UserError for a tower or tokenizer that open_clip cannot represent, and OSError if the folder cannot be written.
    """
    if model.config.text.name == TRANSFORMERS:
        raise UserError(
            f"open_clip cannot represent this text tower; it represents that of the papers and {OPEN_CLIP}NAME"
        )
    if not is_openai(tokenizer):
        raise UserError(
            "open_clip has no tokenizer with the merges of this model; export a model with tokenizer=openai"
        )
    config, names = model_config(model), entry_names(model)
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    exported = {
        theirs: (state[ours].T if theirs in PROJECTIONS else state[ours]).contiguous() for ours, theirs in names.items()
    }
    if POSITIONS in state and POSITIONS not in names:
        positions = state[POSITIONS][0].clone()
        positions[1:] += state[PATCH_BIAS]
        exported |= {
            "visual.positional_embedding": positions,
            "visual.class_embedding": exported["visual.class_embedding"].flatten(),
        }
    mode = "squash" if preprocess.mode == "squash" else "shortest"
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(exported, folder / OPEN_CLIP_WEIGHTS[0])
    save_tensors({key: value for key, value in state.items() if key not in names}, folder / REST_FILE)
    settings = {
        "model": model_name(model),
        "config": plain_settings(model),
        "preprocess": dataclasses.asdict(preprocess),
        "record": clean(record, strip_query=True, strip_folders=True),
    }
    pixels = {"mean": model.pixel_mean.flatten().tolist(), "std": model.pixel_std.flatten().tolist()}
    images = {"size": preprocess.size_px, "interpolation": "bicubic", "resize_mode": mode}
    write_object({"model_cfg": config, "preprocess_cfg": pixels | images, KEY: settings}, folder / CONFIG_FILE)


def read_open_clip(folder: Path, trust: Sequence[str] = ()) -> FolderParts:
    """Read a folder of `export_model`, with the weights that it had, bit for bit, or any CLIP that open_clip saved.

    Raises OSError for a file that cannot be read, and ValueError for one that does not fit.
    """
    whole, weights = read_object(folder / CONFIG_FILE), read_tensors(weights_file(folder))
    try:
        settings = whole[KEY] if KEY in whole else clip_settings(whole)
        name = str(settings["model"])
        model = skeleton(name, parse_config(name, settings["config"], folder, trust), weights, folder)
        preprocess = PreprocessConfig(**settings["preprocess"])
    except KeyError as error:
        raise ValueError(f"{folder / CONFIG_FILE}: {error} is missing; copy the folder again") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / CONFIG_FILE}: {error}") from error
    own, names = model.state_dict(), entry_names(model)
    exported = {key.removeprefix("text."): value for key, value in weights.items()}
    if KEY in whole:
        state = read_tensors(folder / REST_FILE)
    else:
        state = {key: own[key] for key in own if key.startswith("pixel_") or key.endswith("_proj.bias")}
        state |= {key: value for key, value in exported.items() if key not in names.values()}  # which is an error
        if "visual_proj.weight" not in names:  # the tower ends with its own projection
            state["visual_proj.weight"] = torch.eye(model.config.embed_dim)
    for ours, theirs in names.items():
        if theirs in exported:
            value = exported[theirs]
            value = value.T if theirs in PROJECTIONS else value
            state[ours] = value.reshape(own[ours].shape) if value.numel() == own[ours].numel() else value
    config = {"model": name, "record": settings.get("record") or {}}
    return FolderParts(model, state, openai_tokenizer(model.config.text.context_length), preprocess, config)


def clip_settings(whole: dict[str, Any]) -> dict[str, Any]:
    """The settings that `export_model` would keep of the model of an open_clip_config.json.

    Raises ValueError that names the field of a model that is no CLIP here; KeyError and TypeError for a wrong field.
    """
    from open_clip.transform import PreprocessCfg, merge_preprocess_dict  # importing open_clip takes seconds

    from trainer.encoders.open_clip_towers import CONFIGS, OTHER_TOKENIZER_KEYS, SIZES, nearest_architecture

    model, pixels = whole["model_cfg"], merge_preprocess_dict(PreprocessCfg(), whole.get("preprocess_cfg", {}))
    vision, text = (dataclasses.asdict(kind(**model[key])) for key, kind in CONFIGS.items())
    groups = {"model_cfg": model, "vision_cfg": vision, "text_cfg": text, "preprocess_cfg": pixels}
    possible: Values = {("model_cfg", key): (None,) for key in sorted(model.keys() - MODEL_KEYS)}
    possible |= {("text_cfg", key): (None, {}) for key in OTHER_TOKENIZER_KEYS}
    for (group, key), values in (possible | POSSIBLE).items():
        if (value := groups[group][key]) not in values:
            raise ValueError(f"{group}.{key} is {value!r}, which is not supported; give a model with {values[0]!r}")
    name, kwargs = nearest_architecture(model)
    mode = "squash" if pixels["resize_mode"] == "squash" else "crop"
    config = {
        "image": {"name": name, "size_px": vision["image_size"], "kwargs": kwargs["vision_cfg"]},
        "text": {"name": name, "kwargs": kwargs["text_cfg"], **{size: text[size] for size in SIZES}},
        "embed_dim": model["embed_dim"],
        # Without a projection of open_clip's, that is the classifier of timm's network.
        "projection_bias": bool(vision["timm_proj_bias"] or (vision["timm_model_name"] and not vision["timm_proj"])),
        "pixel_mean": pixels["mean"],
        "pixel_std": pixels["std"],
    }
    return {"model": "clip", "config": config, "preprocess": {"size_px": vision["image_size"], "mode": mode}}


def entry_names(model: DualEncoder) -> dict[str, str]:
    """Names in open_clip's layout of the entries of a model that it holds unchanged, transposed or in another shape."""
    text_name = model.config.text.name
    names = {"textual_proj.weight": "text_projection", next(iter(model.temperatures)): "logit_scale"}
    for key in model.state_dict():
        part, _, name = key.partition(".")
        if part == "textual":
            names[key] = name if text_name else text_entry(name)
        elif part == "visual" and model.config.image.name.startswith(OPEN_CLIP):
            names[key] = key
        elif part == "visual" and key not in (PATCH_BIAS, POSITIONS):
            names[key] = f"visual.{vit_entry(name)}"
    for key in cast(set[str], getattr(model.visual, "projection_keys", {"proj"})):
        names[f"visual_proj.{'bias' if key.endswith('.bias') else 'weight'}"] = f"visual.{key}"
    return names


def text_entry(name: str) -> str:
    """The name in open_clip's layout of an entry of the papers' text tower."""
    special = {"token_embed.weight": "token_embedding.weight", "posit_embed": "positional_embedding"}
    return special.get(name, f"transformer.{name}" if name.startswith("resblocks.") else name)


def vit_entry(name: str) -> str:
    """The name in an image tower of open_clip of an entry of the papers' vision transformer."""
    if not name.startswith("blocks."):
        return VIT_NAMES[name]
    _, number, rest = name.split(".", 2)
    ours, theirs = next(item for item in BLOCK_NAMES.items() if rest.startswith(item[0]))
    return f"transformer.resblocks.{number}.{theirs}{rest.removeprefix(ours)}"


def model_config(model: DualEncoder) -> dict[str, Any]:
    """The `model_cfg` of open_clip: sizes of both towers. Raises UserError for towers that it cannot represent."""
    vision, image_gelu = vision_settings(model)
    text, text_gelu = text_settings(model)
    quick = {gelu for gelu in (image_gelu, text_gelu) if gelu is not None}
    if len(quick) > 1:
        raise UserError(
            f"open_clip has one activation function for both towers, but those of {model.config.image.name} and "
            f"{model.config.text.name or 'the text tower of the papers'} differ"
        )
    return {
        "embed_dim": model.config.embed_dim,
        "quick_gelu": quick.pop() if quick else False,
        "vision_cfg": vision,
        "text_cfg": text,
    }


def vision_settings(model: DualEncoder) -> tuple[dict[str, Any], bool | None]:
    """The `vision_cfg` of a model, and whether it has OpenAI's fast GELU; None for networks of timm, which ignore that."""
    config, tower = model.config.image, cast(Any, model.visual)
    if config.name in PAPER_VITS:
        sizes = {**PAPER_VITS[config.name], "patch_size": 16, **config.kwargs}
        width = sizes["embed_dim"]
        vision = {"layers": sizes["depth"], "width": width, "head_width": width // sizes["num_heads"]}
        return {"image_size": config.size_px, "patch_size": sizes["patch_size"], **vision, "no_ln_pre": True}, False
    if not config.name.startswith(OPEN_CLIP):
        raise UserError(
            f"open_clip cannot represent the image tower {config.name}; it represents {', '.join(PAPER_VITS)} and "
            f"towers of {OPEN_CLIP}NAME"
        )
    from trainer.encoders.open_clip_towers import architecture  # importing open_clip takes seconds

    whole = architecture("image", config.name)
    vision = {**whole["vision_cfg"], "image_size": config.size_px, **config.kwargs}
    removed = set(tower.projection_keys)
    if removed == {"proj"}:
        return vision, bool(whole.get("quick_gelu", False))
    if "head.proj.weight" in removed:
        return vision | {"timm_model_pretrained": False, "timm_proj": "linear", "timm_proj_bias": False}, None
    raise UserError(
        f"open_clip cannot represent the projection after {config.name}, whose own is part of the tower or no "
        "single matrix"
    )


def text_settings(model: DualEncoder) -> tuple[dict[str, Any], bool]:
    """The `text_cfg` of a model, and whether it has OpenAI's fast GELU."""
    config = model.config.text
    if config.name is None:
        names = ("context_length", "vocab_size", "width", "heads", "layers")
        return {name: getattr(config, name) for name in names}, False
    from trainer.encoders.open_clip_towers import architecture

    whole = architecture("text", config.name)
    settings = {**whole["text_cfg"], **config.kwargs, "proj_type": "linear", "proj_bias": False}
    return settings, bool(whole.get("quick_gelu", False))
