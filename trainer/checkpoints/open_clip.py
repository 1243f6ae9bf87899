"""Load initial weights of towers from the files that timm, open_clip and transformers save. Only tensors are unpickled."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

from safetensors import SafetensorError
from torch import Tensor, nn

from hypergrit_common.errors import UserError
from hypergrit_common.json_file import read_object
from hypergrit_common.weights import read_tensors
from trainer.checkpoints.model import copy_state, resized, stretched
from trainer.checkpoints.open_clip_layout import CONFIG_FILE
from trainer.checkpoints.towers import OPEN_CLIP_WEIGHTS
from trainer.encoders.build import timm_state
from trainer.encoders.config import CACHED, OPEN_CLIP, PAPER_VITS, TRANSFORMERS, ImageConfig, TextConfig
from trainer.models.dual_encoder import DualEncoder

TEXT_ENTRIES: Final = ("token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection")
"""Prefixes of the text tower's entries in models that keep them at the top level, not under `text.`."""


def load_towers(model: DualEncoder) -> None:
    """Load the weights that the configuration names for each tower.

    Raises UserError for weights that do not exist, cannot be read or do not fit the tower.
    """
    for part, config, tower in (
        ("image", model.config.image, model.visual),
        ("text", model.config.text, model.textual),
    ):
        if config.weights is None or config.name == CACHED:  # the frozen model of a head is attached
            continue
        key = f"model.{part}.weights"
        if isinstance(config, ImageConfig) and config.name not in PAPER_VITS and not config.name.startswith(OPEN_CLIP):
            load_timm(model.visual, config)
            continue
        if isinstance(config, TextConfig) and config.name == TRANSFORMERS:
            load_transformers(model.textual, config)
            continue
        if not (config.name or "").startswith(OPEN_CLIP):
            raise UserError(
                f"{key} is for networks of timm and open_clip; set model.{part}.name={OPEN_CLIP}NAME, or use init="
            )
        try:
            path = find_weights(config)
            state = select_entries(read_tensors(path), part)
            state = stretched(model.textual, config, state) if isinstance(config, TextConfig) else resized(tower, state)
            unused: Any = tower.projection_keys
            state = {name: value for name, value in state.items() if name not in unused}
            copy_state(tower, state, f"{path} does not fit the {part} tower of {config.name}")
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{key}: {error}") from error


def load_timm(tower: nn.Module, config: ImageConfig) -> None:
    """Load the weight file of a timm network. Raises UserError if it cannot be read or does not fit."""
    try:
        copy_state(tower, timm_state(config), f"{config.weights} does not fit {config.name}")
    except (OSError, ValueError, TypeError, RuntimeError, KeyError, SafetensorError, UnpicklingError) as error:
        raise UserError(
            f"model.image.weights: {config.weights} cannot be loaded into {config.name}: {error}"
        ) from error


def load_transformers(tower: nn.Module, config: TextConfig) -> None:
    """Load the folder of an encoder of transformers. Raises UserError if it cannot be read or does not fit."""
    from trainer.encoders.transformers_text import pretrained_state

    try:
        copy_state(
            tower.get_submodule("encoder"), pretrained_state(config), f"{config.weights} does not fit model.text"
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"model.text.weights: {str(error).strip().partition(chr(10))[0]}") from error


def find_weights(config: ImageConfig | TextConfig) -> Path:
    """Return the weight file of `config.weights`: a file, a folder written by open_clip, or one of its pretrained tags.

    The file of a tag is downloaded. Raises OSError if there is no such file, and ValueError if it belongs to a
    different network.
    """
    assert config.weights
    path = Path(config.weights)
    if path.is_dir():
        check_same_network(config, path)
        file = next((path / name for name in OPEN_CLIP_WEIGHTS if (path / name).is_file()), None)
        if file is None:
            raise FileNotFoundError(
                f"{path} holds neither {' nor '.join(OPEN_CLIP_WEIGHTS)}; give the path of a weight file"
            )
        return file
    return path if path.is_file() else download_weights(config)


def download_weights(config: ImageConfig | TextConfig) -> Path:
    """Download the safetensors file of a pretrained tag, or find it in the cache. Errors as in `find_weights`."""
    import open_clip  # already imported for the tower

    name = str(config.name).removeprefix(OPEN_CLIP)
    pretrained = open_clip.get_pretrained_cfg(name, str(config.weights))
    if not pretrained:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(name)) or "none"
        raise FileNotFoundError(
            f"{config.weights} is neither a file or folder, nor a tag of {name} (available tags: {tags})"
        )
    quick_gelu = pretrained.get("quick_gelu", False)
    if quick_gelu != open_clip.get_model_config(name).get("quick_gelu", False):
        other = f"{name}-quickgelu" if quick_gelu else name.removesuffix("-quickgelu")
        raise ValueError(
            f"{config.weights} was trained with a different activation function than {name}; use {OPEN_CLIP}{other}"
        )
    if not pretrained.get("hf_hub"):
        raise ValueError(
            f"open_clip has {config.weights} only as a pickle; save it as safetensors and give the path of that file"
        )
    path = Path(open_clip.download_pretrained(pretrained))
    if path.suffix != ".safetensors":
        raise ValueError(
            f"open_clip has {config.weights} only as {path.name}; save it as safetensors and give the path of that file"
        )
    return path


def check_same_network(config: ImageConfig | TextConfig, folder: Path) -> None:
    """Compare the tower with the configuration file in the folder of the weights, if the folder has one.

    This detects a different number of heads or activation function, which does not change the shapes of the weights.
    Raises ValueError if they differ.
    """
    from trainer.encoders.open_clip_towers import architecture, differences, text_config, vision_config

    if not (folder / CONFIG_FILE).is_file():
        return
    saved = read_object(folder / CONFIG_FILE)
    saved = saved.get("model_cfg", saved)
    assert config.name
    tower_config: Any
    if isinstance(config, ImageConfig):
        part, tower_config = "vision_cfg", vision_config(config.name, config.size_px, config.kwargs)
    else:
        part, tower_config = "text_cfg", text_config(config.name, config.kwargs)
    if part not in saved:
        raise ValueError(f"{folder / CONFIG_FILE} has no {part}; copy the folder again, or give the weight file itself")
    other = next(iter(differences(tower_config, saved[part])), None)
    if saved.get("quick_gelu", False) != architecture("image", config.name).get("quick_gelu", False):
        other = "quick_gelu"
    if other:
        raise ValueError(
            f"{folder / CONFIG_FILE} has a different {other} than {config.name}; give the weights of {config.name}"
        )


def select_entries(state: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    """The entries of the "image" or "text" tower, by their names within the tower."""
    prefix = "visual." if part == "image" else "text."
    found = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    if part == "text" and not found:
        found = {key: value for key, value in state.items() if key.startswith(TEXT_ENTRIES)}
    return found
