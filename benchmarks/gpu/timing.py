"""Times from CUDA events, or from the clock on a CPU; memory; and what the device reaches at best."""

import resource
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from hypergrit_common.devices import torch_dtype
from trainer.training.profile import peak_flop_s

WARM_UP = 3
MOST_CALLS = 200
PRODUCT, TINY_PRODUCT = 8192, 256  # rows and columns of a large matrix product
COPY_BYTES, TINY_COPY_BYTES = 4 << 30, 1 << 20


class Timing(NamedTuple):
    """Seconds of repeated calls."""

    median: float
    low: float  # 10th percentile
    high: float  # 90th percentile
    calls: int


def time_calls(call: Callable[[], object], device: torch.device, *, seconds: float = 2.0) -> Timing:
    """Time calls for about `seconds`, three at least, or one if `seconds` is 0.

    On a GPU they are queued one after the other, without waiting. The time of a call then runs from the end of the one
    before on the device until its own, so it includes gaps in which the device waits for the host.
    """
    for _ in range(WARM_UP if seconds else 0):
        call()
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    n = int(min(MOST_CALLS, max(3, seconds / max(time.perf_counter() - start, 1e-6)))) if seconds else 1
    if device.type == "cuda":
        events = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        synchronize(device)
        times = [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)]
    else:
        marks = [time.perf_counter()]
        for _ in range(n):
            call()
            marks.append(time.perf_counter())
        times = np.diff(marks).tolist()
    low, median, high = np.percentile(times, [10, 50, 90])
    return Timing(float(median), float(low), float(high), n)


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    """Begin a new measurement of `peak_gib`."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float:
    """Return the most memory that tensors took since `reset_peak`, in GiB; on a CPU, that of the process so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def gpu_name(device: torch.device) -> str:
    """Return the GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def large_product(device: torch.device, dtype: torch.dtype, n: int) -> tuple[Callable[[], object], float]:
    """Return a function that computes a matrix product of random numbers, and its FLOPs."""
    x, y = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    return lambda: x @ y, 2.0 * n**3


def ceilings(device: torch.device, *, tiny: bool) -> dict[str, Any]:
    """Measure what bounds every program: FLOP/s of large matrix products, and bytes/s of copies on the device."""
    found: dict[str, Any] = {}
    seconds = 0.0 if tiny else 0.5
    for name in ("bf16", "fp32"):
        product, flops = large_product(device, torch_dtype(name), TINY_PRODUCT if tiny else PRODUCT)
        found[f"{name}_product_tflop_s"] = flops / time_calls(product, device, seconds=seconds).median / 1e12
    source = torch.randn((TINY_COPY_BYTES if tiny else COPY_BYTES) // 4, device=device)
    target = torch.empty_like(source)
    copy = time_calls(lambda: target.copy_(source), device, seconds=seconds)
    found["copy_tb_s"] = 2 * source.nbytes / copy.median / 1e12
    return found


def utilisation(flops: float, seconds: float, device: torch.device, product_tflop_s: float) -> dict[str, float | None]:
    """Return FLOP/s, and their share of the data sheet's peak (MFU) and of a large matrix product of the same run."""
    rate, peak = flops / seconds, peak_flop_s(device)
    return {
        "tflop_s": rate / 1e12,
        "mfu": rate / peak if peak else None,
        "share_of_products": rate / 1e12 / product_tflop_s,
    }
