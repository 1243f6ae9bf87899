"""Hyper3-CLIP's checkpoints: a folder with config.json, model.safetensors and the tokenizer of a CLIP of transformers.

The layout is that of the loader in the package `hyper-models` 0.4.0; no file of the authors was opened. Guessed: that
config.json has the keys below, and that the file holds one logit scale, or the three of UNCHA. Modules that only the
training used are not read. The paper's model (trainer/models/hyper3.py) is not published.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from hypergrit_common.weights import read_tensors
from trainer.checkpoints.skeleton import skeleton
from trainer.data.preprocess import PreprocessConfig
from trainer.encoders.config import TRANSFORMERS, ImageConfig, TextConfig
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import MODELS
from trainer.text.base import TextTokenizer
from trainer.text.fast_tokenizer import read_fast_tokenizer

logger = logging.getLogger(__name__)

NEEDED: Final = ("vision_backbone", "text_config", "embed_dim", "curv_init")
IMAGE, TEXT, OWN_TEXT = "vision_encoder.backbone.", "text_encoder.backbone.", "textual.encoder."
HEADS: Final = {"image_proj.": "visual_proj.", "text_proj.": "textual_proj."}
SCALARS: Final = ("logit_scale", "global_logit_scale", "global_local_logit_scale", "local_logit_scale")


def is_hyper3(config: Mapping[str, Any]) -> bool:
    """True for the config.json of a Hyper3-CLIP."""
    return "format" not in config and "vision_backbone" in config


class FolderParts(NamedTuple):
    """The parts of a folder: a model without memory (`skeleton`), its weights, tokenizer, preprocessing and configuration."""

    model: DualEncoder
    state: dict[str, Tensor]
    tokenizer: TextTokenizer
    preprocess: PreprocessConfig
    config: dict[str, Any]


def read_hyper3(folder: Path, config: Mapping[str, Any]) -> FolderParts:
    """Read a folder as a HyCoCLIP, or a UNCHA if it has three temperatures: with towers of timm and transformers.

    Raises ValueError for a folder that does not fit, and OSError if it cannot be read.
    """
    if missing := [key for key in NEEDED if key not in config]:
        raise ValueError(
            f"{folder / 'config.json'}: {missing[0]!r} is missing; give a folder in the layout of version 1"
        )
    if (
        config.get("projection_hidden_dim")
        or config.get("normalize_encoder_features")
        or config.get("phyclip_subspace_dim")
    ):
        raise ValueError(f"{folder}: a Hyper3-CLIP with hidden projections, unit features or factors is not supported")
    from trainer.encoders.transformers_network import settings_of  # takes seconds

    length, size_px = int(config.get("max_text_length", 77)), int(config.get("image_size", 224))
    state = read_tensors(folder / "model.safetensors")
    text_config = dict(config["text_config"])
    try:
        sizes: dict[str, Any] = {**settings_of(text_config), "context_length": length}
        tokenizer = read_fast_tokenizer(folder, length)
        text = TextConfig(name=TRANSFORMERS, **sizes, pad_id=tokenizer.pad_id, pooling="pooler", kwargs=text_config)
        image = ImageConfig(name=config["vision_backbone"], size_px=size_px, kwargs={"global_pool": "avg"})
        name = "hycoclip" if "logit_scale" in state else "uncha"
        settings = {"embed_dim": config["embed_dim"], "curv_init": config["curv_init"], "projection_bias": True}
        model = skeleton(name, MODELS[name].config(image=image, text=text, **settings), state, folder)
    except UserError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from error
    converted = own_state(model, state)
    limits = [config.get(key) for key in ("curvature_min", "curvature_max")]
    if None not in limits and "curv" in converted:
        converted["curv"] = converted["curv"].clamp(*torch.tensor(limits).log().tolist())
    return FolderParts(model, converted, tokenizer, PreprocessConfig(size_px=size_px, mode="squash"), {})


def own_state(model: DualEncoder, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a checkpoint by their names here. Those that the model does not use are logged.

    The text tower has another module `text_model` around it or not, depending on the version of transformers.
    """
    own = model.state_dict()
    texts = {bare(key.removeprefix(OWN_TEXT)): key for key in own if key.startswith(OWN_TEXT)}
    found = {key: value for key, value in own.items() if key.startswith("pixel_")}  # not in the file
    unused = []
    for key, value in state.items():
        if key.startswith(IMAGE):
            name: str | None = f"visual.{key.removeprefix(IMAGE)}"
        elif key.startswith(TEXT):
            name = texts.get(bare(key.removeprefix(TEXT)))
        elif head := next((head for head in HEADS if key.startswith(head)), None):
            name = HEADS[head] + key.removeprefix(head)
        else:
            name = {"log_curv": "curv", "visual_alpha": "visual_alpha", "textual_alpha": "textual_alpha"}.get(key)
            name = key if key in SCALARS and key in own else name
        if name is None:
            unused.append(key)
        else:
            found[name] = value.reshape(own[name].shape) if name in own and value.numel() == 1 else value
    if unused:
        logger.warning("%d entries of the checkpoint are not used, such as %s", len(unused), unused[0])
    return found


def bare(name: str) -> str:
    """The name of an entry of the text tower in any version of transformers."""
    return name.removeprefix("text_model.")
