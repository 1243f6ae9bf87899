"""Models, weights and inputs of the reference cases of `models.py`.

Weights and images are drawn by `recipe.py` from a seed, a name and a shape, so the files of cases hold only the results
of the released code ("the reference").
"""

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.parity import recipe
from tests.trainer.released_files import to_released
from trainer.batch import Batch, named_streams
from trainer.checkpoints.model import FACTOR_SCALARS, from_released
from trainer.encoders.config import ImageConfig, TextConfig
from trainer.models.config import (
    IMAGENET_STD,
    HyCoCLIPConfig,
    HyperbolicConfig,
    ModelConfig,
    PHyCLIPConfig,
    UNCHAConfig,
)
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import build_model
from trainer.text.tokenizer import openai_tokenizer

NAMES = {"CLIPBaseline": "clip", "MERU": "meru", "HyCoCLIP": "hycoclip", "PHyCLIP": "phyclip"}
ALL_NAMES = NAMES | {"UNCHA": "uncha"}
SIZES = {
    "vit_s16": {"image": ImageConfig(), "text": TextConfig(), "embed_dim": 512},
    "mini": {
        "image": ImageConfig(kwargs={"embed_dim": 96, "depth": 2, "num_heads": 3}),
        "text": TextConfig(width=64, layers=2, heads=1),
        "embed_dim": 64,
    },
}

clip_tokenizer = functools.cache(openai_tokenizer)


def config_of(meta: dict[str, Any], size: dict[str, Any], kwargs: dict[str, Any]) -> ModelConfig:
    """Settings for the constructor arguments `kwargs` of the reference, which clamps the logit scale at exp(4.6052)."""
    common = {**size, "max_logit_scale": math.exp(4.6052)}
    if meta["model"] == "CLIPBaseline":
        return ModelConfig(**common)
    common |= {"curv_init": float(kwargs["curv_init"]), "curv_learnable": kwargs["learn_curv"]}
    common["entail_weight"] = kwargs["entail_weight"]
    if meta["model"] == "MERU":
        return HyperbolicConfig(**common)
    common["use_boxes"] = kwargs["use_boxes"]
    if meta["model"] == "UNCHA":
        return UNCHAConfig(**common, pixel_mean=IMAGENET_STD)
    if meta["model"] == "HyCoCLIP":
        mean = IMAGENET_STD if meta["repo"] == "hycoclip" else ModelConfig.pixel_mean
        return HyCoCLIPConfig(**common, pixel_mean=mean)
    return PHyCLIPConfig(
        **common, factor_dim=kwargs["subspace_dim"], metric=kwargs["product_metric"], eps=kwargs["lorentz_eps"]
    )


def build(meta: dict[str, Any], size: dict[str, Any], kwargs: dict[str, Any]) -> DualEncoder:
    """Model of the case, with random weights."""
    return build_model(ALL_NAMES[meta["model"]], config_of(meta, size, kwargs))


def fill(model: DualEncoder, meta: dict[str, Any]) -> None:
    """Load the weights of the recipe, as a checkpoint in the released layout."""
    state = to_released(model)
    drawn = recipe.fill({key: tuple(value.shape) for key, value in state.items()}, meta["seed"], meta["overrides"])
    model.load_state_dict(from_released({**state, **{key: torch.tensor(value) for key, value in drawn.items()}}))


def batch_of(meta: dict[str, Any], dtype: torch.dtype) -> Batch:
    """Batch of the case: images of the recipe and tokenized captions."""
    tokenizer = clip_tokenizer()
    images, tokens = {}, {}
    for kind, captions in meta["captions"].items():
        images[kind] = torch.tensor(recipe.images(kind, len(captions), seed=meta["seed"])).to(dtype)
        tokens[kind] = tokenizer(captions)
    boxes = meta["kwargs"].get("use_boxes", False)
    rows = {"text": tokens["whole"], "image": images["whole"]}
    if boxes:
        rows |= {"box_image": images["box"], "box_text": tokens["box"]}
    owner = torch.tensor(meta["box_owner"]) if boxes and "box_owner" in meta else None
    return Batch(streams=named_streams(rows, owner))


def gradients(model: DualEncoder) -> dict[str, Tensor | None]:
    """Gradients by the parameter names of the reference.

    PHyCLIP of the reference also has the scalars of MERU, which have no gradient.
    """
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    for ours, stem in FACTOR_SCALARS.items():
        if ours in found and (grad := found[ours]) is not None and grad.ndim:
            found |= {f"{stem}.{index}": value for index, value in enumerate(grad)}
            found[ours] = None
    return found


def flat(lifted: Tensor) -> Tensor:
    """Lifted points [b d] with factors concatenated, as the reference returns them."""
    return lifted if lifted.ndim == 2 else lifted.movedim(0, 1).flatten(1)


def head_inputs(case: str, seed: int) -> dict[str, np.ndarray]:
    """Features (text, image, box_text, box_image) of a head case, [24 512] in float32, before the lift."""
    kind = case.split("@")[0]
    r = recipe.rng_for("head:" + kind, seed)
    base = r.standard_normal((1, 512))
    t = base + 0.45 * r.standard_normal((24, 512))
    n = r.standard_normal((4, 24, 512))
    match kind:
        case "incone":
            rows = (t, 1.8 * t + 0.01 * n[0], 0.4 * t + 0.01 * n[1], 0.8 * t + 0.01 * n[2])
        case "identical" | "micro":
            rows = (t, t, t, t)
        case _:
            rows = (t, 0.6 * t + 0.9 * n[0], 0.5 * t + 0.4 * n[1], 0.4 * t + 0.6 * n[2])
    scale = {"tiny": 1e-3, "micro": 1e-6}.get(kind, 1.0)
    names = ("text", "image", "box_text", "box_image")
    return {name: (scale * row).astype(np.float32) for name, row in zip(names, rows, strict=True)}


def head_model(meta: dict[str, Any], case: dict[str, Any], **fields: Any) -> DualEncoder:
    """Model with the learned scalars of the case, the settings `fields`, and minimal towers, which are not used."""
    tiny = {
        "image": ImageConfig(size_px=16, kwargs={"embed_dim": 4, "depth": 1, "num_heads": 1}),
        "text": TextConfig(vocab_size=2, context_length=2, width=4, layers=1, heads=1),
        "embed_dim": 512,
    }
    model = build(meta, {**tiny, **fields}, case["kwargs"])
    state = to_released(model) | {name: torch.tensor(value) for name, value in case["scalars"].items()}
    model.load_state_dict(from_released(state))
    return model
