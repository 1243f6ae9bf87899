"""The state of the random number generators of Python, numpy and torch, as JSON."""

import base64
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_generators(seed: int) -> None:
    """Seed the generators of Python, numpy and torch, on all devices."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (libraries may use the global generator)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of the generators of Python, numpy, torch and `device`."""
    generator = np.random.get_state(legacy=False)  # noqa: NPY002 (libraries may use the global generator)
    assert isinstance(generator, dict)
    inner = {**generator["state"], "key": generator["state"]["key"].tolist()}
    return {
        "python": random.getstate(),
        "numpy": {**generator, "state": inner},
        "torch": encode(torch.get_rng_state()),
        "cuda": encode(torch.cuda.get_rng_state(device)) if device.type == "cuda" else None,
    }


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore a `random_state`. The generator of a GPU is restored only if it was saved on a GPU."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    inner = state["numpy"]["state"] | {"key": np.array(state["numpy"]["state"]["key"], dtype=np.uint32)}
    np.random.set_state(state["numpy"] | {"state": inner})  # noqa: NPY002
    torch.set_rng_state(decode(state["torch"]))
    if device.type == "cuda" and state["cuda"]:
        torch.cuda.set_rng_state(decode(state["cuda"]), device)


def encode(state: Tensor) -> str:
    """Encode a tensor of bytes as base64."""
    return base64.b64encode(state.numpy().tobytes()).decode()


def decode(text: str) -> Tensor:
    """Decode the output of `encode` to a tensor of bytes."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
