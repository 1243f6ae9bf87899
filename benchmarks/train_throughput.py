"""Benchmark of training: throughput, model FLOP utilisation and the parts of a step, by model size and batch size.

    python -m benchmarks.train_throughput SHARDS [--model hycoclip] [--sizes s b l] [--batches 64 256 768]
                                          [--set KEY=VALUE ...]

Measures the papers' configurations (jobs/train/) with the trainer's loader and step; on a GPU, in bfloat16 and with
compiled blocks. SHARDS is a folder of training shards, such as out/train_demo/shards/train. Prints one JSON line per
measurement:

- `mfu`: the FLOP/s of the towers' forward and backward passes over the GPU's bfloat16 peak according to its data sheet.
- `share_of_products`: the same FLOP/s over those of one large matrix product, measured in the same run.
- `share`: the parts of a step as shares of its time: forward pass of the towers, losses, backward pass, and the rest
  (optimizer, checks).
- `data_wait_share`: the share of time that training with the loader waits for data.

`--set` changes settings, as on the trainer's command line.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.timing import PRODUCT, gpu_name, large_product, peak_flop_s
from common.devices import pick_device, torch_dtype
from trainer.batch import Batch, Pairs
from trainer.build import Run, build
from trainer.config import TrainConfig, load_config
from trainer.copies import BatchCopies
from trainer.distributed.process import Process
from trainer.metrics.writers import Meter
from trainer.models.registry import DEFAULT, MODELS
from trainer.step import PendingStep, autocast, start_step, update

JOBS = Path(__file__).parents[1] / "jobs" / "train"
WARM_UP, REPEATS = 3, 10


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", help="folder of training shards")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda[:n]")
    parser.add_argument("--model", default=DEFAULT, choices=tuple(MODELS))
    parser.add_argument("--sizes", nargs="+", default=["s", "b", "l"], choices=["s", "b", "l"], help="ViT sizes")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256, 768], help="batch sizes")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of the trainer's settings")
    options = parser.parse_args()
    device = pick_device(options.device)
    for size in options.sizes:
        for batch in options.batches:
            try:
                line = measure(options, size, batch, device)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                break
            print(json.dumps({"name": "train_throughput", "model": options.model, "vit": size, "batch": batch, **line}))


def measure(options: argparse.Namespace, size: str, batch: int, device: torch.device) -> dict[str, object]:
    """Measure one configuration: a step on a fixed batch, its parts, then steps with the loader."""
    with tempfile.TemporaryDirectory() as output:
        compiled = str(device.type == "cuda").lower()
        overrides = [f"shards={options.shards}", f"output={output}", f"batch_size={batch}", f"compile={compiled}"]
        run = build(job_config(options.model, size, [*overrides, *options.set]), Process(device=device))
        try:
            return {"device": gpu_name(device), **speeds(run)}
        finally:
            run.loader.close()


def job_config(model: str, size: str, overrides: Sequence[str]) -> TrainConfig:
    """Return the papers' configuration of a model with a ViT of a size (s, b or l), and settings that replace others."""
    names = [model] if size == "s" else [model, f"vit_{size}"]
    return load_config([*(str(JOBS / f"{name}.yaml") for name in names), *overrides])


def speeds(run: Run) -> dict[str, object]:
    """Return the measurements of a run as JSON values."""
    device = run.process.device
    batch = next(iter(run.loader)).to(device)
    flops = tower_flops(run, batch)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    side = PRODUCT if device.type == "cuda" else PRODUCT // 8
    product, product_flops = large_product(device, torch_dtype(run.precision), side)
    # Each part includes the parts before it; the shares are computed from the differences.
    cumulative = seconds(
        {
            "towers": lambda: features(run, batch),
            "losses": lambda: loss(run, batch),
            "backward": lambda: loss(run, batch).backward(),
            "rest": lambda: update(run, batch),
            "product": product,
        },
        device,
    )
    step_s, product_s = cumulative["rest"], cumulative.pop("product")
    rate = flops / step_s
    peak = peak_flop_s(device)
    is_bf16 = run.precision == "bf16"
    return {
        "pairs_per_s": round(run.config.batch_size / step_s, 1),
        "step_s": round(step_s, 4),
        "tflop_per_s": round(rate / 1e12, 2),
        "mfu": round(rate / peak, 3) if peak and is_bf16 else None,
        "share_of_products": round(rate * product_s / product_flops, 3),
        "share": {
            name: round((cumulative[name] - previous) / step_s, 3)
            for name, previous in zip(cumulative, [0.0, *cumulative.values()], strict=False)
        },
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if device.type == "cuda" else None,
        **with_loader(run),
    }


def seconds(calls: dict[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    """Return the median seconds of each call, synchronised with the device. The calls alternate."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(WARM_UP + REPEATS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if index >= WARM_UP:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def tower_flops(run: Run, batch: Batch) -> float:
    """Return the FLOPs of the towers' forward and backward passes, without recomputed activations."""
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as forward, torch.no_grad():
        features(run, batch)
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as both:
        backward(features(run, batch))
    run.optimizer.zero_grad(set_to_none=True)
    recomputed = run.config.checkpoint_activations or run.config.micro_batch_size is not None
    return both.get_total_flops() - (forward.get_total_flops() if recomputed else 0)


def features(run: Run, batch: Batch) -> Pairs:
    """Run the towers' forward pass."""
    with autocast(run):
        return run.model.features(batch)


def loss(run: Run, batch: Batch) -> Tensor:
    """Run the forward pass of towers and losses."""
    run.optimizer.zero_grad(set_to_none=True)
    with autocast(run):
        value: Tensor = run.wrapped(batch).loss
    return value


def backward(pairs: Pairs) -> None:
    """Run the towers' backward pass, with ones as the gradients of their outputs."""
    outputs = [value for value in vars(pairs).values() if isinstance(value, Tensor) and value.requires_grad]
    torch.autograd.backward(outputs, [torch.ones_like(value) for value in outputs])


def with_loader(run: Run, steps: int = REPEATS, warm_up: int = WARM_UP) -> dict[str, float]:
    """Measure the throughput of steps with the loader, and the share of time spent waiting for data."""
    meter, copies = Meter(), BatchCopies(run.loader, run.process.device)
    waiting: PendingStep | None = None
    for index in range(warm_up + steps):
        if index == warm_up:
            meter.restart()
        with meter.waiting():
            batch = copies.take()
        step = start_step(run, batch)
        with meter.waiting():
            copies.start()
        if waiting:
            waiting.read()
        waiting = step
        meter.samples += run.config.batch_size
    if waiting:
        waiting.read()
    read = meter.read()
    return {
        "pairs_per_s_with_loader": round(read["samples_per_s"], 1),
        "data_wait_share": round(read["data_wait_share"], 3),
    }


if __name__ == "__main__":
    main()
