"""Convert state dicts of the released checkpoints to those of this trainer.

The layouts differ in four ways. Released files hold the causal mask of the text tower as a buffer; this trainer's
models have no such entry. PHyCLIP's curvatures and alphas are released as one scalar entry per factor (`curvs.0`, ...);
here they are vectors. PHyCLIP's files also hold MERU's own `curv` and alphas, which its model does not use.

UNCHA's files also hold a temperature and a linear layer of the text tower that its loss does not use.

The entries of MERU and HyCoCLIP have the same names, so a file does not show which of the two models it contains.
"""

import re
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

FACTOR_SCALARS: Final = {
    "curv": "curvs",
    "visual_alpha": "visual_concept_alphas",
    "textual_alpha": "textual_concept_alphas",
}
"""Name of a vector in this trainer's state dict -> stem of the released scalar entries."""

MASK: Final = "textual.attn_mask"
UNUSED: Final = ("logit_scale", "textual.min_radius_head.0.weight", "textual.min_radius_head.0.bias")
"""Entries of UNCHA's files that have no gradient in its released code."""


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
