"""Models without memory, by which the weights of a folder are compared with its configuration before memory is taken."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from hypergrit_common.weights import bounded
from trainer.models.config import ModelConfig
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import build_model

MAX_BUFFERS: Final = 1 << 28
"""Numbers in the buffers of a model, such as the mask of a context, which its weights do not have."""


def skeleton(name: str, config: ModelConfig, state: Mapping[str, Tensor], source: Path) -> DualEncoder:
    """Build a model on the meta device; one that cannot be built there, with its memory, up to that of its weights.

    Raises ValueError, naming `source`, for a model that is larger than its weights or cannot be built, and UserError like
    `build_model`.
    """
    try:
        try:
            with torch.device("meta"), bounded(source, len(state)):
                model = build_model(name, config)
        except Exception:  # perhaps values of tensors are needed; a real error comes again
            with bounded(source, len(state), sum(value.numel() for value in state.values())):
                model = build_model(name, config)
    except (UserError, ValueError):
        raise
    except Exception as error:  # sizes that no tensor has raise many types
        raise ValueError(f"{source}: no model can be built from its configuration: {error!s:.200}") from error
    large = [(key, buffer) for key, buffer in model.named_buffers() if buffer.numel() > MAX_BUFFERS]
    for key, buffer in large:
        raise ValueError(f"{source}: its configuration gives {key} the shape {list(buffer.shape)}, which is too large")
    return model
