"""Models on disk: our folders, and the released checkpoint files.

A folder holds config.json, model.safetensors, and the tokenizer's merges where they are its own.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import UserError
from common.json_file import read_object, write_object
from common.weights import read_tensors, save_tensors
from trainer.checkpoints.released import from_released
from trainer.data.preprocess import PreprocessConfig
from trainer.encoders.config import PAPER_VITS, ImageConfig, TextConfig
from trainer.models.config import ModelConfig
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import MODELS, build_model, model_name
from trainer.text.tokenizer import OPENAI_MERGES, Tokenizer, openai_tokenizer, read_tokenizer, write_merges

FORMAT = 1
PARTS = {"model": str, "config": dict, "tokenizer": str, "preprocess": dict}  # of config.json


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model for inference, and what its inputs must go through. `config` is the whole of config.json, if any."""

    model: DualEncoder
    tokenizer: Tokenizer
    preprocess: PreprocessConfig
    config: dict[str, Any]


def save_model(
    folder: Path,
    model: DualEncoder,
    *,
    tokenizer: Tokenizer,
    preprocess: PreprocessConfig,
    record: dict[str, Any],
    half: bool = False,
) -> None:
    """Write a folder that `load_model` reads. `record` says how the model came about and what it can do.

    `half` keeps matrices in 16 bits; scalars, gains and biases stay as they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own_merges = len(tokenizer.merges) != OPENAI_MERGES
    if own_merges:
        write_merges(tokenizer, folder / "merges.txt")
    config = {
        "format": FORMAT,
        "model": model_name(model),
        "config": dataclasses.asdict(model.config),
        "tokenizer": "merges.txt" if own_merges else "openai",
        "preprocess": {**dataclasses.asdict(preprocess), "interpolation": "bicubic", "antialias": True},
        "record": record,
    }
    matrices = {name for name, parameter in model.named_parameters() if parameter.ndim > 1} if half else set()
    tensors = {
        key: (value.half() if key in matrices else value).detach().cpu().contiguous()
        for key, value in model.state_dict().items()
    }
    save_tensors(tensors, folder / "model.safetensors")
    write_object(config, folder / "config.json")


def load_model(path: Path | str, name: str | None = None) -> LoadedModel:
    """A model in float32 and evaluation mode, from our folder or from a released `.pth` file.

    A released file does not say whether it holds MERU or HyCoCLIP: give its `name`. A folder says it itself; a `name`
    that contradicts it is an error. Raises ValueError for what does not fit, OSError for what cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        return load_folder(path, name)
    state = read_weights(path)
    if name is None or name not in MODELS:
        raise ValueError(
            f"{path}: a released checkpoint does not say what it is; give model_name, one of {', '.join(MODELS)}"
        )
    model = build_model(name, infer_config(state, name, path))
    load_state(model, state, path)
    return LoadedModel(model=model.eval(), tokenizer=openai_tokenizer(), preprocess=PreprocessConfig(), config={})


def load_folder(folder: Path, name: str | None) -> LoadedModel:
    for part in ("config.json", "model.safetensors"):
        if not (folder / part).is_file():
            raise FileNotFoundError(f"{folder}: no {part}; this is not a folder that the trainer saved")
    config = read_object(folder / "config.json")
    if config.get("format") != FORMAT:
        raise ValueError(f"{folder}: format {config.get('format')}; this version reads format {FORMAT}")
    lacking = [key for key, kind in PARTS.items() if not isinstance(config.get(key), kind)]
    if lacking:
        raise ValueError(
            f"{folder / 'config.json'} lacks {lacking[0]!r}, or has something else there; copy the folder again, or save the model anew"
        )
    if name is not None and config["model"] != name:
        raise ValueError(f"{folder} holds a {config['model']} model, not {name}")
    model = build_model(config["model"], read_config(config["model"], config["config"], folder))
    load_state(model, read_tensors(folder / "model.safetensors"), folder)
    context = model.config.text.context_length
    own = config["tokenizer"] != "openai"
    tokenizer = read_tokenizer(folder / "merges.txt", context) if own else openai_tokenizer(context)
    if tokenizer.vocab_size != model.config.text.vocab_size:
        raise ValueError(
            f"{folder}: the merges make {tokenizer.vocab_size} tokens, the model has {model.config.text.vocab_size}"
        )
    try:
        preprocess = PreprocessConfig(**{key: config["preprocess"][key] for key in ("size_px", "mode")})
    except KeyError as error:
        raise ValueError(f"{folder / 'config.json'}: preprocess lacks {error}") from error
    return LoadedModel(model=model.eval(), tokenizer=tokenizer, preprocess=preprocess, config=config)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of one of our folders, or of a released file in our layout."""
    if path.is_dir():
        return read_tensors(path / "model.safetensors")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint; give a folder that the trainer saved, or a .pth file")
    return from_released(read_tensors(path))


def read_config(name: str, values: dict[str, Any], where: Path) -> ModelConfig:
    """A model's configuration from the dictionary of `dataclasses.asdict`; an unknown key is an error."""
    if name not in MODELS:
        raise ValueError(f"{where}: model {name!r} is none of {', '.join(MODELS)}")
    parts: dict[str, Any] = {"image": ImageConfig, "text": TextConfig}
    try:
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        built = {key: parts[key](**value) if key in parts else value for key, value in plain.items()}
        return MODELS[name].config(**built)
    except (TypeError, UserError) as error:
        raise ValueError(f"{where}: config of {name}: {error}") from error


def load_state(model: DualEncoder, state: Mapping[str, Tensor], where: Path) -> None:
    """Strict. Raises ValueError that names the first missing, unexpected and misshapen entries."""
    copy_state(model, state, f"{where} does not fit a {model_name(model)} model")


def copy_state(module: nn.Module, state: Mapping[str, Tensor], otherwise: str) -> None:
    """Every entry of a module from `state`, which holds no others. Raises ValueError that begins with `otherwise`."""
    expected = module.state_dict()
    missing, unexpected = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    shapes = [key for key in expected.keys() & state.keys() if expected[key].shape != state[key].shape]
    if missing or unexpected or shapes:
        problems = [f"{len(missing)} entries missing, such as {missing[0]}"] if missing else []
        problems += [f"{len(unexpected)} unknown entries, such as {unexpected[0]}"] if unexpected else []
        problems += [
            f"{key} is {list(state[key].shape)}, not {list(expected[key].shape)}" for key in sorted(shapes)[:1]
        ]
        raise ValueError(f"{otherwise}: {'; '.join(problems)}")
    with torch.no_grad():
        for key, value in expected.items():
            value.copy_(state[key])


def infer_config(state: Mapping[str, Tensor], name: str, where: Path) -> ModelConfig:
    """Sizes of a released model, from its shapes."""
    try:
        width, patch = state["visual.cls_token"].shape[-1], state["visual.patch_embed.proj.weight"].shape[-1]
        side = round((state["visual.pos_embed"].shape[1] - 1) ** 0.5)
        layers = len({key.split(".")[2] for key in state if key.startswith("textual.resblocks.")})
        vocab_size, text_width = state["textual.token_embed.weight"].shape
        context_length = len(state["textual.posit_embed"])
        embed_dim = len(state["visual_proj.weight"])
    except KeyError as error:
        raise ValueError(f"{where}: no entry {error}; this is not a checkpoint of the CLIP family") from error
    tower = next((key for key, value in PAPER_VITS.items() if value["embed_dim"] == width), None)
    if tower is None:
        raise ValueError(f"{where}: image tower of width {width}; released ones are small, base and large")
    text = TextConfig(
        vocab_size=vocab_size, context_length=context_length, width=text_width, layers=layers, heads=text_width // 64
    )
    image = ImageConfig(name=tower, size_px=side * patch)
    extra: dict[str, Any] = {}
    if name == "phyclip":
        if state.get("curv", torch.tensor(0.0)).ndim != 1:
            raise ValueError(f"{where}: no factors in it, so it is no PHyCLIP; try meru or hycoclip")
        extra["factor_dim"] = embed_dim // len(state["curv"])
    return MODELS[name].config(image=image, text=text, embed_dim=embed_dim, **extra)
