"""The generators that training may draw from, as JSON."""

import base64
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_generators(seed: int) -> None:
    """Python's, numpy's, torch's and those of the devices."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (others may draw from it)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """Python's, numpy's, torch's, and that of the device."""
    generator = np.random.get_state(legacy=False)  # noqa: NPY002 (others may draw from it)
    assert isinstance(generator, dict)
    inner = {**generator["state"], "key": generator["state"]["key"].tolist()}
    return {
        "python": random.getstate(),
        "numpy": {**generator, "state": inner},
        "torch": encode(torch.get_rng_state()),
        "cuda": encode(torch.cuda.get_rng_state(device)) if device.type == "cuda" else None,
    }


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    inner = state["numpy"]["state"]
    np.random.set_state({**state["numpy"], "state": {**inner, "key": np.array(inner["key"], dtype=np.uint32)}})  # noqa: NPY002
    torch.set_rng_state(decode(state["torch"]))
    if device.type == "cuda" and state["cuda"]:
        torch.cuda.set_rng_state(decode(state["cuda"]), device)


def encode(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def decode(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
