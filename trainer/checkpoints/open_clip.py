"""What the towers of open_clip begin with: weights in the forms that open_clip saves. Nothing is unpickled."""

from pathlib import Path
from typing import Any

from torch import Tensor

from common.errors import UserError
from common.json_file import read_object
from common.weights import read_tensors
from trainer.checkpoints.model import copy_state
from trainer.encoders.config import OPEN_CLIP, ImageConfig, TextConfig
from trainer.models.dual_encoder import DualEncoder

# Of a folder as open_clip writes it for the hub, the first that is there.
FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
CONFIG = "open_clip_config.json"
# Where the text tower lies on the model itself, not under `text.`.
TEXT = ("token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection")


def load_towers(model: DualEncoder) -> None:
    """Put the weights that the configuration names into the towers. Raises UserError for what is not there or does not fit."""
    for part, config, tower in (
        ("image", model.config.image, model.visual),
        ("text", model.config.text, model.textual),
    ):
        if config.weights is None:
            continue
        key = f"model.{part}.weights"
        if not (config.name or "").startswith(OPEN_CLIP):
            raise UserError(f"{key} is for towers of open_clip; set model.{part}.name={OPEN_CLIP}NAME, or use init=")
        try:
            path = find(config)
            state = entries(read_tensors(path), part)
            state = {name: value for name, value in state.items() if name not in tower.projection_keys}  # type: ignore[operator]
            copy_state(tower, state, f"{path} does not fit the {part} tower of {config.name}")
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{key}: {error}") from error


def find(config: ImageConfig | TextConfig) -> Path:
    """The file of `weights`, which may be its folder, or a tag of open_clip, which fetches it."""
    assert config.weights
    path = Path(config.weights)
    if path.is_dir():
        check_same_network(config, path)
        file = next((path / name for name in FILES if (path / name).is_file()), None)
        if file is None:
            raise FileNotFoundError(f"{path} holds neither {' nor '.join(FILES)}")
        return file
    return path if path.is_file() else fetch(config)


def fetch(config: ImageConfig | TextConfig) -> Path:
    import open_clip  # here already, for its tower

    name = str(config.name).removeprefix(OPEN_CLIP)
    known = open_clip.get_pretrained_cfg(name, str(config.weights))
    if not known:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(name)) or "none"
        raise FileNotFoundError(
            f"{config.weights} is neither a file or folder, nor a tag of {name} (there are: {tags})"
        )
    quick = known.get("quick_gelu", False)
    if quick != open_clip.get_model_config(name).get("quick_gelu", False):
        other = f"{name}-quickgelu" if quick else name.removesuffix("-quickgelu")
        raise ValueError(
            f"{config.weights} was trained with another activation than {name} has; take {OPEN_CLIP}{other}"
        )
    if not known.get("hf_hub"):
        raise ValueError(f"open_clip has {config.weights} as a pickle only; save it as safetensors and give that file")
    path = Path(open_clip.download_pretrained(known))
    if path.suffix != ".safetensors":
        raise ValueError(
            f"open_clip found {config.weights} as {path.name} only; save it as safetensors and give that file"
        )
    return path


def check_same_network(config: ImageConfig | TextConfig, folder: Path) -> None:
    """What the shapes of weights do not show, such as heads and activations, by the configuration beside them."""
    from trainer.encoders.open_clip_towers import architecture, first_difference, text_config, vision_config

    if not (folder / CONFIG).is_file():
        return
    saved = read_object(folder / CONFIG)
    saved = saved.get("model_cfg", saved)
    assert config.name
    ours: Any
    if isinstance(config, ImageConfig):
        part, ours = "vision_cfg", vision_config(config.name, config.size_px, config.kwargs)
    else:
        part, ours = "text_cfg", text_config(config.name)
    if part not in saved:
        raise ValueError(f"{folder / CONFIG} has no {part}")
    other = first_difference(ours, saved[part], ignore=("image_size", "output_tokens", "timm_model_pretrained"))
    if saved.get("quick_gelu", False) != architecture("image", config.name).get("quick_gelu", False):
        other = "quick_gelu"
    if other:
        raise ValueError(f"{folder / CONFIG} says another {other} than {config.name} has")


def entries(state: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    """Those of one tower, by their names in it."""
    prefix = "visual." if part == "image" else "text."
    found = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    if part == "text" and not found:
        found = {key: value for key, value in state.items() if key.startswith(TEXT)}
    return found
