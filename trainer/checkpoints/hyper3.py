"""Hyper3-CLIP's checkpoints, in three layouts that the authors' code reads (github.com/Hyper3Labs/hyper3-clip, MIT).

- a folder with config.json, model.safetensors and the tokenizer: their published beta, with one temperature
- a folder with config.yaml and model.safetensors, as the code saves a model
- a training checkpoint, .pt, with the state dict `model` and the settings `config`

The last two have three temperatures and the pooling of queries, and name the text tower only: that of CLIP-B/32.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import yaml
from torch import Tensor

from hypergrit_common.errors import UserError
from hypergrit_common.model_files import TOKENIZER
from hypergrit_common.weights import load_torch, read_tensors
from trainer.checkpoints.skeleton import skeleton
from trainer.data.preprocess import PreprocessConfig
from trainer.encoders.config import TRANSFORMERS, ImageConfig, TextConfig
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import MODELS
from trainer.text.base import TextTokenizer
from trainer.text.fast_tokenizer import UNUSED, read_fast_tokenizer
from trainer.text.tokenizer import openai_tokenizer

logger = logging.getLogger(__name__)

YAML: Final = "config.yaml"
SIZES: Final = ("image_size", "max_text_length")
"""Settings of the model that a training checkpoint has among those of the data."""
NEEDED: Final = ("vision_backbone", "embed_dim", "curv_init")
TEXT_TOWERS: Final[Mapping[str, dict[str, Any]]] = {
    "openai/clip-vit-base-patch32": {"model_type": "clip_text_model", "eos_token_id": 49407}
}
"""Name of a text tower -> its configuration; what is missing is the default of transformers."""
IMAGE, TEXT, OWN_TEXT = "vision_encoder.backbone.", "text_encoder.backbone.", "textual.encoder."
POOLING: Final = "query_pooling."
HEADS: Final = {
    "image_proj.": "visual_proj.",
    "text_proj.": "textual_proj.",
    f"{POOLING}text_query_proj.": f"{POOLING}query.",
    f"{POOLING}cross_attention.": f"{POOLING}attention.",
    f"{POOLING}mlp_norm.": f"{POOLING}norm.",
    f"{POOLING}pool_mlp.": f"{POOLING}mlp.",
}
"""Beginnings of names -> those of ours."""
SCALARS: Final = ("logit_scale", "global_logit_scale", "global_local_logit_scale", "local_logit_scale")


def is_hyper3(config: Mapping[str, Any]) -> bool:
    """True for the settings of a Hyper3-CLIP."""
    return "format" not in config and "vision_backbone" in config


class FolderParts(NamedTuple):
    """The parts of a folder: a model without memory (`skeleton`), its weights, tokenizer, preprocessing and configuration."""

    model: DualEncoder
    state: dict[str, Tensor]
    tokenizer: TextTokenizer
    preprocess: PreprocessConfig
    config: dict[str, Any]


def read_saved(path: Path) -> FolderParts | None:
    """Read a training checkpoint, or a folder with config.yaml; None for another file or folder.

    Raises ValueError for one that does not fit, and OSError if it cannot be read.
    """
    if path.is_dir() and (path / YAML).is_file() and (path / "model.safetensors").is_file():
        config = yaml.safe_load((path / YAML).read_text(encoding="utf-8"))
    elif path.suffix == ".pt" and path.is_file():
        contents = load_torch(path)
        config = contents.get("config") if isinstance(contents, Mapping) else None
        if isinstance(config, Mapping) and isinstance(model := config.get("model"), Mapping):
            sizes = {key: value for key, value in config.get("data", {}).items() if key in SIZES}
            config = sizes | dict(model)
    else:
        return None
    return read_hyper3(path, config) if isinstance(config, Mapping) and is_hyper3(config) else None


def read_hyper3(path: Path, config: Mapping[str, Any]) -> FolderParts:
    """Read a folder or a training checkpoint, with towers of timm and transformers.

    The model is a Hyper3-CLIP if there is a pooling of queries, otherwise a UNCHA, or a HyCoCLIP with one temperature.
    Raises ValueError for what does not fit, and OSError if it cannot be read.
    """
    if missing := [key for key in NEEDED if key not in config]:
        raise ValueError(
            f"{path}: {missing[0]!r} is missing in the settings; give a Hyper3-CLIP as its authors save it"
        )
    if (
        config.get("projection_hidden_dim")
        or config.get("normalize_encoder_features")
        or config.get("phyclip_subspace_dim")
        or config.get("query_mlp_ratio", 4.0) != 4.0
    ):
        raise ValueError(
            f"{path}: a Hyper3-CLIP with hidden projections, unit features, factors or another MLP is not supported"
        )
    from trainer.encoders.transformers_text import settings_of  # takes seconds

    length, size_px = int(config.get("max_text_length", 77)), int(config.get("image_size", 224))
    text_name = config.get("text_model_name", next(iter(TEXT_TOWERS)))
    text_config = dict(config.get("text_config") or TEXT_TOWERS.get(text_name, {}))
    if not text_config:
        raise ValueError(f"{path}: the text tower {text_name} is not known; it can be {', '.join(TEXT_TOWERS)}")
    state = read_tensors(path / "model.safetensors" if path.is_dir() else path)
    name = "hyper3" if any(key.startswith(POOLING) for key in state) else "uncha"
    name = "hycoclip" if "logit_scale" in state and "global_logit_scale" not in state else name
    pool = config.get("vision_global_pool", "avg" if f"{IMAGE}fc_norm.weight" in state else "token")
    kwargs = {"global_pool": pool} | ({"norm_eps": 1e-5} if config.get("vision_norm_layer") == "layer_norm" else {})
    settings = {"embed_dim": config["embed_dim"], "curv_init": config["curv_init"], "projection_bias": True}
    settings |= {"query_heads": config.get("query_num_heads", 8)} if name == "hyper3" else {}
    try:
        has_tokenizer = (path / TOKENIZER).is_file()
        tokenizer = read_fast_tokenizer(path, length) if has_tokenizer else openai_tokenizer(length)
        pad_id = tokenizer.pad_id if has_tokenizer else UNUSED  # 0 is also "!"
        sizes: dict[str, Any] = {**settings_of(text_config), "context_length": length, "pad_id": pad_id}
        text = TextConfig(name=TRANSFORMERS, **sizes, pooling="pooler", kwargs=text_config)
        image = ImageConfig(name=config["vision_backbone"], size_px=size_px, kwargs=kwargs)
        model = skeleton(name, MODELS[name].config(image=image, text=text, **settings), state, path)
    except UserError as error:
        raise ValueError(f"{path}: {error}") from error
    converted = own_state(model, state)
    low, high = (config.get(f"curvature_{end}") or by * config["curv_init"] for end, by in (("min", 0.1), ("max", 10)))
    if "curv" in converted:
        converted["curv"] = converted["curv"].clamp(*torch.tensor([low, high]).log().tolist())
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
            name = name if name in own or not key.startswith(POOLING) else None
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
