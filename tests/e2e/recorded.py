"""The recorded hashes of the outputs of all commands: recorded.json, and the machine on which they were made."""

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch

from tests.e2e.hashes import content_hashes
from tests.e2e.outputs import RECIPES, Outputs

FILE: Final = Path(__file__).parent / "recorded.json"
RECORDED: Final = tuple(name for name in RECIPES if name != "retry")
"""The recorded outputs. That of retry is compared with a job in which its rows succeeded at once."""
PACKAGES: Final = (
    "torch",
    "torchvision",
    "transformers",
    "spacy",
    "pyarrow",
    "pillow",
    "opencv-python-headless",
    "numpy",
)


def environment() -> dict[str, str]:
    """Return what decides the last digits of the models' results, and the bytes of the encoders."""
    machine = {"machine": platform.machine(), "instructions": torch.backends.cpu.get_cpu_capability()}
    return machine | {"arithmetic": arithmetic()} | {name: version(name) for name in PACKAGES}


def arithmetic() -> str:
    """Return a hash of sums that processors with the same instructions round differently, in one thread."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        generator = torch.Generator().manual_seed(0)
        a, b = (torch.randn(8, 197, 192, generator=generator) for _ in range(2))
        weights = torch.randn(64, 192, 3, 3, generator=generator)
        products = (a @ b.transpose(1, 2)).softmax(-1) @ b
        features = torch.nn.functional.conv2d(a[:, :196].transpose(1, 2).reshape(8, 192, 14, 14), weights)
        content = b"".join(tensor.numpy().tobytes() for tensor in (products, features, products.norm(dim=-1).exp()))
    finally:
        torch.set_num_threads(n_threads)
    return hashlib.sha256(content).hexdigest()[:16]


def read_recorded() -> dict[str, Any]:
    """Return the record: `made_with`, and `outputs` by name."""
    record: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return record


def record_of(outputs: Outputs) -> dict[str, Any]:
    """Return the record of all outputs, which are made if they do not exist."""
    found = MappingProxyType({name: content_hashes(outputs.make(name)) for name in RECORDED})
    return {"made_with": environment(), "outputs": dict(found)}
