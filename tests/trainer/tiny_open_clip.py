"""Tiny open_clip models for tests: their architectures, and their weights in every form that open_clip saves."""

import json
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.push_to_hf_hub import save_config_for_hf
from safetensors.torch import save_file

VIT = {"image_size": 16, "layers": 2, "width": 16, "head_width": 8, "patch_size": 8}
RESNET = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None}
TIMM = {"image_size": 32, "timm_model_name": "test_convnext", "timm_pool": "avg", "timm_proj": "linear"}
CLASSIFIER = {"image_size": 32, "timm_model_name": "test_convnext", "timm_pool": "avg", "timm_proj": None}
TEXT = {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "tiny-vit": {"vision_cfg": VIT, "text_cfg": TEXT, "quick_gelu": True},
    "tiny-resnet": {"vision_cfg": RESNET, "text_cfg": TEXT | {"pool_type": "last"}, "custom_text": True},
    "tiny-timm": {"vision_cfg": TIMM, "text_cfg": TEXT | {"no_causal_mask": True}, "custom_text": True},
    "tiny-classifier": {"vision_cfg": CLASSIFIER, "text_cfg": TEXT | {"width": 24, "heads": 3}},
}


def register(folder: Path) -> None:
    """Add the architectures to those that open_clip lists."""
    for name, parts in ARCHITECTURES.items():
        (folder / f"{name}.json").write_text(json.dumps({"embed_dim": 8, **parts}))
    open_clip.add_model_config(folder)


def tiny(name: str) -> Any:
    """A model of open_clip with random weights."""
    torch.manual_seed(3)
    return open_clip.create_model(name).eval()


def save(model: Any, name: str, folder: Path, form: str) -> Path:
    """Save the weights of a model in one of the forms; return the path of the file or folder."""
    state = model.state_dict()
    match form:
        case "safetensors":
            save_file(state, folder / "weights.safetensors")
        case "state dict":
            torch.save(state, folder / "weights.pt")
        case "training checkpoint":
            with_prefix = {f"module.{key}": value for key, value in state.items()}
            torch.save({"epoch": 3, "name": name, "state_dict": with_prefix, "optimizer": {}}, folder / "weights.pt")
        case _:
            (folder / "weights").mkdir()
            save_file(state, folder / "weights" / "open_clip_model.safetensors")
            save_config_for_hf(model, folder / "weights" / "open_clip_config.json", open_clip.get_model_config(name))
    return next(folder.glob("weights*"))
