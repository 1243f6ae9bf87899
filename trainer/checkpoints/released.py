"""The state dicts of the released checkpoints of CLIP, MERU, HyCoCLIP and PHyCLIP, and ours, in both directions.

They differ in three places. Theirs hold the text tower's mask as a buffer; ours has none. PHyCLIP's curvatures and
alphas are one scalar entry for each factor (`curvs.0`, ...); ours are vectors. PHyCLIP's also carry MERU's own `curv`
and alphas, which nothing uses. MERU's and HyCoCLIP's are equal key for key, so a file does not say which it is.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from trainer.models.dual_encoder import DualEncoder
from trainer.models.phyclip import PHyCLIP

# Ours -> the stem of theirs.
FACTOR_SCALARS = {"curv": "curvs", "visual_alpha": "visual_concept_alphas", "textual_alpha": "textual_concept_alphas"}
MASK = "textual.attn_mask"


def to_released(model: DualEncoder) -> dict[str, Tensor]:
    """The model's state in the released layout."""
    state = {key: value.detach() for key, value in model.state_dict().items()}
    length = model.config.text.context_length
    state[MASK] = torch.ones(length, length, dtype=torch.bool).triu(1)
    if isinstance(model, PHyCLIP):
        for ours, stem in FACTOR_SCALARS.items():
            state |= {f"{stem}.{index}": value for index, value in enumerate(state.pop(ours).clone())}
        state["curv"] = torch.tensor(model.config.curv_init).log()
        state["visual_alpha"] = state["textual_alpha"] = torch.tensor(model.config.embed_dim**-0.5).log()
    return state


def from_released(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A released state dict as ours. Raises ValueError for one that lacks a factor."""
    ours = dict(state)
    ours.pop(MASK, None)
    if "curvs.0" in ours:
        for name, stem in FACTOR_SCALARS.items():
            entries = {int(key.rpartition(".")[2]): key for key in ours if re.fullmatch(rf"{stem}\.\d+", key)}
            if sorted(entries) != list(range(len(entries))):
                raise ValueError(f"{stem}: entries {sorted(entries)} are not a run from 0; the file is damaged")
            ours[name] = torch.stack([ours.pop(entries[index]) for index in range(len(entries))])
    return ours


def write_released(path: Path, model: DualEncoder) -> None:
    torch.save({"model": to_released(model)}, path)
