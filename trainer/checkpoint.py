"""Models on disk. Ours is a folder: config.json, model.safetensors, and the tokenizer's merges if they are its own."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from trainer.encoders.image import ImageConfig
from trainer.encoders.text import TextConfig
from trainer.models import CLIP, DualEncoder, ModelConfig
from trainer.preprocess import PreprocessConfig
from trainer.tokenizer import OPENAI_MERGES, Tokenizer, openai_tokenizer, read_tokenizer, write_merges

FORMAT = 1
MODELS: dict[str, type[DualEncoder]] = {"clip": CLIP}


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model for inference, and what its inputs must go through. `config` is the whole of config.json."""

    model: CLIP
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
    """Write a folder that `load_model` reads. `record` says how the model came about and what it can do."""
    folder.mkdir(parents=True, exist_ok=True)
    own_merges = len(tokenizer.merges) != OPENAI_MERGES
    if own_merges:
        write_merges(tokenizer, folder / "merges.txt")
    config = {
        "format": FORMAT,
        "model": next(name for name, kind in MODELS.items() if type(model) is kind),
        "config": dataclasses.asdict(model.config),
        "tokenizer": "merges.txt" if own_merges else "openai",
        "preprocess": {**dataclasses.asdict(preprocess), "interpolation": "bicubic", "antialias": True},
        "record": record,
    }
    tensors = {
        key: value.detach().to(torch.float16 if half and value.ndim else value.dtype).contiguous()
        for key, value in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_model(folder: Path | str) -> LoadedModel:
    """A model of `save_model`, in float32 and evaluation mode."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder}: no config.json; this is not a folder that the trainer saved")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["format"] != FORMAT:
        raise ValueError(f"{folder}: format {config['format']}; this version reads {FORMAT}")
    values = dict(config["config"])
    values |= {"image": ImageConfig(**values["image"]), "text": TextConfig(**values["text"])}
    model = CLIP(ModelConfig(**values))
    state = {key: value.float() for key, value in load_file(folder / "model.safetensors").items()}
    model.load_state_dict(state)
    context = model.config.text.context_length
    own = config["tokenizer"] != "openai"
    tokenizer = read_tokenizer(folder / "merges.txt", context) if own else openai_tokenizer(context)
    preprocess = PreprocessConfig(size_px=config["preprocess"]["size_px"], mode=config["preprocess"]["mode"])
    return LoadedModel(model=model.eval(), tokenizer=tokenizer, preprocess=preprocess, config=config)
