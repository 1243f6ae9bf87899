"""Files in the layout of the released checkpoints, from models of this trainer: what `from_released` reads."""

from pathlib import Path

import torch
from torch import Tensor

from trainer.checkpoints.model import FACTOR_SCALARS, MASK, UNUSED
from trainer.models.dual_encoder import DualEncoder
from trainer.models.phyclip import PHyCLIP
from trainer.models.uncha import UNCHA


def write_released(path: Path, model: DualEncoder) -> None:
    torch.save({"model": to_released(model)}, path)


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
