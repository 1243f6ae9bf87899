"""Convert state dicts between the released checkpoints and this trainer.

The layouts differ in four ways. Released files hold the causal mask of the text tower as a buffer; this trainer's
models have no such entry. PHyCLIP's curvatures and alphas are released as one scalar entry per factor (`curvs.0`, ...);
here they are vectors. PHyCLIP's files also hold MERU's own `curv` and alphas, which its model does not use.

UNCHA's files also hold a temperature and a linear layer of the text tower that its loss does not use.

The entries of MERU and HyCoCLIP have the same names, so a file does not show which of the two models it contains.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from trainer.models.dual_encoder import DualEncoder
from trainer.models.phyclip import PHyCLIP
from trainer.models.uncha import UNCHA

FACTOR_SCALARS: Final = {
    "curv": "curvs",
    "visual_alpha": "visual_concept_alphas",
    "textual_alpha": "textual_concept_alphas",
}
"""Name of a vector in this trainer's state dict -> stem of the released scalar entries."""

MASK: Final = "textual.attn_mask"
UNUSED: Final = ("logit_scale", "textual.min_radius_head.0.weight", "textual.min_radius_head.0.bias")
"""Entries of UNCHA's files that have no gradient in its released code. The head is written as zeros."""


def to_released(model: DualEncoder) -> dict[str, Tensor]:
    """Convert the state of a model to the released layout."""
    state = {key: value.detach() for key, value in model.state_dict().items()}
    length = model.config.text.context_length
    state[MASK] = torch.ones(length, length, dtype=torch.bool).triu(1)
    if isinstance(model, PHyCLIP):
        for name, stem in FACTOR_SCALARS.items():
            state |= {f"{stem}.{index}": value for index, value in enumerate(state.pop(name).clone())}
        state["curv"] = torch.tensor(model.config.curv_init).log()
        state["visual_alpha"] = state["textual_alpha"] = torch.tensor(model.config.embed_dim**-0.5).log()
    if isinstance(model, UNCHA):
        width = model.config.text.width
        unused = (-torch.tensor(model.config.temperature_init).log(), torch.zeros(1, width), torch.zeros(1))
        state |= dict(zip(UNUSED, unused, strict=True))
    return state


def from_released(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a released state dict to this trainer's layout. Raises ValueError if the entry of a factor is missing."""
    converted = dict(state)
    converted.pop(MASK, None)
    if "global_logit_scale" in converted:
        converted = {key: value for key, value in converted.items() if key not in UNUSED}
    if "curvs.0" in converted:
        for name, stem in FACTOR_SCALARS.items():
            entries = {int(key.rpartition(".")[2]): key for key in converted if re.fullmatch(rf"{stem}\.\d+", key)}
            if sorted(entries) != list(range(len(entries))):
                raise ValueError(
                    f"{stem}: the entries are numbered {sorted(entries)} instead of 0, 1, ...; the file is damaged, "
                    "download it again"
                )
            converted[name] = torch.stack([converted.pop(entries[index]) for index in range(len(entries))])
    return converted


def write_released(path: Path, model: DualEncoder) -> None:
    """Write a model as a released `.pth` file."""
    torch.save({"model": to_released(model)}, path)
