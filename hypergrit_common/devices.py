"""The settings `device` and `precision`, which all commands share."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

from hypergrit_common.errors import UserError

if TYPE_CHECKING:
    import torch

Precision = Literal["auto", "fp32", "bf16", "fp16"]
DEVICE: Final = re.compile(r"auto|cpu|cuda(:\d+)?")
THREADS: Final = "OMP_NUM_THREADS"
"""Environment variable with the number of threads of a process, as the user wants it."""
SMALL_MODEL: Final = 10_000_000
"""Parameters below which the threads of a CPU wait for each other longer than they compute."""


def check_device(config: Any) -> None:
    """Raise UserError unless the field `device` is `auto`, `cpu`, `cuda` or `cuda:N`; for `__post_init__`."""
    check_name(config.device, "device")


def check_name(device: str, key: str) -> None:
    """Raise UserError unless a device is `auto`, `cpu`, `cuda` or `cuda:N`."""
    if not DEVICE.fullmatch(device):
        raise UserError(f"{key} is {device!r}; give auto, cpu, cuda or cuda:N")


def pick_device(device: "str | torch.device", *, index: int = 0, key: str = "device") -> "torch.device":
    """Return the torch device of a `device` setting: `auto` is CUDA if a GPU is available, else the CPU.

    `index` is the GPU that `auto` and `cuda` select if each GPU has its own process. `key` is the name of the setting
    in error messages. Raises UserError if the device has another name, or does not exist on this machine.
    """
    import torch  # takes seconds, and the configuration classes do not need it

    device = str(device)
    check_name(device, key)
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            f"{key}={device}, but torch finds no CUDA device; use {key}=cpu, or install a build of torch for your GPU"
        )
    chosen = torch.device("cuda", index) if device in ("auto", "cuda") else torch.device(device)
    if (chosen.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"{key}={device} needs GPU {chosen.index}, but this machine has {torch.cuda.device_count()}; "
            "start fewer processes or choose another GPU"
        )
    return chosen


def limit_threads(model: "torch.nn.Module", device: "torch.device") -> None:
    """Let a small model on a CPU compute in one thread, unless the variable THREADS is set.

    If other work shares the cores, threads that wait for each other are up to 20 times as slow for heads.
    """
    import torch

    is_small = sum(parameter.numel() for parameter in model.parameters()) < SMALL_MODEL
    if device.type == "cpu" and is_small and THREADS not in os.environ:
        torch.set_num_threads(1)


def resolve_precision(precision: Precision, device: "torch.device") -> Literal["fp32", "bf16", "fp16"]:
    """Resolve `auto`: bf16 on GPUs with bf16 arithmetic (Ampere and later), else fp32."""
    if precision != "auto":
        return precision
    import torch

    is_fast = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "bf16" if is_fast else "fp32"


def torch_dtype(precision: Literal["fp32", "bf16", "fp16"]) -> "torch.dtype":
    """Return the torch dtype of a resolved precision."""
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def autocast(device: "torch.device", dtype: "torch.dtype") -> "torch.autocast":
    """Return the context in which a network computes in a number format; float32 is that of its weights."""
    import torch

    is_half = dtype != torch.float32
    return torch.autocast(device.type, dtype if is_half else None, enabled=is_half)


@contextmanager
def tf32(is_on: bool) -> Iterator[None]:
    """Inside, a GPU rounds the factors of float32 matrix products to TF32, or does not. CPUs ignore it."""
    import torch

    was_on = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = is_on
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = was_on
