"""The frozen model behind a head over cached features (trainer.encoders.cached): found by path and hash, loaded when used.

A saved head names its frozen model by path and hash in `weights` and `kwargs` of its towers. A relative path is first
looked for in the folder of the head, where `save_model` writes a copy if it is asked for.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from hypergrit_common.paths import public_name
from trainer.checkpoints.folder import TENSORS
from trainer.encoders.build import keep_patches, patches_of
from trainer.encoders.cached import CachedImage, CachedText
from trainer.encoders.config import CACHED
from trainer.encoders.text import StateSource, TokenStates
from trainer.models.dual_encoder import DualEncoder

COPY: Final = "tower"
"""Folder of a copy of the frozen model in the folder of a head."""
WEIGHTS: Final = "model.safetensors"
OPEN_CLIP_WEIGHTS: Final = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
"""File names in a folder that open_clip writes for the Hugging Face hub; the first one that exists is read."""

Load = Callable[[Path, str | None], Any]  # a LoadedModel


class FrozenModel:
    """The outputs of the towers of a model, before or after its projections, without gradients."""

    def __init__(self, model: DualEncoder, projected: bool) -> None:
        self.model, self.projected = model.eval(), projected

    @torch.no_grad()
    def image(self, pixels: Tensor) -> Tensor:
        model = self.model.to(pixels.device)
        states: Tensor = model.visual(pixels.to(model.pixel_mean.dtype))
        return model.visual_proj(states) if self.projected else states

    @torch.no_grad()
    def patches(self, pixels: Tensor) -> Tensor:
        """Features and states of the p patches [b 1+p f]. Raises ValueError if the tower has none."""
        model = self.model.to(pixels.device)
        visual: Any = model.visual
        keep_patches(visual)
        tokens = visual.forward_features(pixels.to(model.pixel_mean.dtype))
        pooled = visual.forward_head(tokens, pre_logits=True)
        states = torch.cat([pooled[:, None], patches_of(visual, tokens)], dim=1)
        return model.visual_proj(states) if self.projected else states

    @torch.no_grad()
    def text(self, token_ids: Tensor, source: StateSource | None) -> Tensor | TokenStates:
        model = self.model.to(token_ids.device)
        found = model.textual(token_ids, source)
        if not self.projected:
            return found
        return model.textual_proj(found) if isinstance(found, Tensor) else TokenStates(*map(model.textual_proj, found))


def cached_towers(model: DualEncoder) -> list[dict[str, Any]]:
    """The records of a model's heads about their frozen model: its path, and `model`, `sha256`, `projected`."""
    towers = (model.config.image, model.config.text)
    return [{"path": tower.weights, **tower.kwargs} for tower in towers if tower.name == CACHED]


def attach_tower(
    model: DualEncoder, load: Load, folders: Sequence[Path] = (), given: Path | None = None
) -> DualEncoder:
    """Give the heads of a model their frozen model, which is loaded when they first need it. Return the model.

    It is looked for at `given`, else at the path that the heads name, from each of `folders` and from the working
    directory. Models without heads are unchanged.
    """
    named = cached_towers(model)
    if not named:
        return model
    places = [given] if given else [folder / str(named[0]["path"]) for folder in (*folders, Path())]

    name, sha256, projected = (named[0].get(key) for key in ("model", "sha256", "projected"))

    @cache
    def place() -> Path:
        return find_tower(places, str(sha256))

    @cache
    def frozen() -> FrozenModel:
        path = place()
        try:
            with torch.inference_mode(False):  # the head may need it first there, but its weights serve training too
                return FrozenModel(load(path, name).model, bool(projected))
        except (OSError, ValueError) as error:
            raise UserError(f"the frozen tower of this head cannot be loaded: {error}") from error

    for tower in (model.visual, model.textual):
        if isinstance(tower, CachedImage | CachedText):
            tower.frozen, tower.place = frozen, place
    return model


def find_tower(places: Sequence[Path], sha256: str) -> Path:
    """The first place with a model of this hash. Raises UserError that names the places if there is none."""
    found = [place for place in places if weights_file(place).is_file()]
    match = next((place for place in found if weights_sha256(place) == sha256), None)
    if match is None:
        problem = "has other weights" if found else "does not exist"
        raise UserError(
            f"the frozen tower of this head {problem}: {(found or places)[0]}, SHA-256 {sha256[:12]}...; put it back, or "
            "give its folder or file with load_model(..., tower=PATH), whose save_pretrained(FOLDER) writes a head for it"
        )
    return match


def weights_file(path: Path) -> Path:
    """The file of weights of a model folder, also one of open_clip or a checkpoint, or of a released file."""
    files = [path / name for name in (*OPEN_CLIP_WEIGHTS, TENSORS, WEIGHTS)]
    return next((file for file in files if file.is_file()), files[-1]) if path.is_dir() else path


def weights_sha256(path: Path) -> str:
    """The hash of the weights of a model folder or of a released file. Raises OSError."""
    with weights_file(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain_settings(model: DualEncoder) -> dict[str, Any]:
    """The configuration of a model as plain values. Initial weights, which it has by now, are named without their folder."""
    settings = dataclasses.asdict(model.config)
    for tower in (settings["image"], settings["text"]):
        if tower["name"] != CACHED and tower["weights"]:
            tower["weights"] = public_name(tower["weights"])
    return settings


def renamed_tower(config: dict[str, Any], path: str, **facts: str | None) -> dict[str, Any]:
    """The configuration of a head as plain values, with another path and other facts of its frozen model."""
    towers = {part: config[part] for part in ("image", "text") if config[part]["name"] == CACHED}
    changed = {
        part: {**tower, "weights": path, "kwargs": {**tower["kwargs"], **facts}} for part, tower in towers.items()
    }
    return config | changed
