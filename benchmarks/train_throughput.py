"""What bounds training: pairs per second and model FLOP utilisation by batch size, where a step's time goes, how long it waits for data.

    python -m benchmarks.train_throughput SHARDS [--model hycoclip] [--sizes s b l] [--batches 64 256 768] [--set KEY=VALUE ...]

The papers' configurations (jobs/train/) in bfloat16, blocks compiled on a GPU, trained by the trainer's own loader and
step on SHARDS, a folder of training shards such as out/train_demo/shards/train. `mfu` is the towers' arithmetic, forwards and
backwards, over what the GPU's data sheet promises; `share_of_products` over that of one large matrix product taken in the same run.
`share` divides the step among the towers' and the losses' forward pass, the backward pass, and the rest (optimizer, checks).
`--set` changes the configuration, as on the trainer's command line. One JSON line a measurement.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from trainer.batch import Batch, Pairs
from trainer.build import Run, build
from trainer.config import load_config
from trainer.distributed.process import Process, pick_device
from trainer.loop import AUTOCAST, autocast, update
from trainer.metrics.writers import Meter

JOBS = Path(__file__).parents[1] / "jobs" / "train"
WARM_UP, REPEATS = 3, 10
PRODUCT = 8192  # rows and columns of the product on a GPU; an eighth of them on a CPU
DENSE_BF16 = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "A6000": 155e12}  # data sheets, FLOP/s


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default="hycoclip", choices=["clip", "meru", "hycoclip", "phyclip", "poinclip"])
    parser.add_argument("--sizes", nargs="+", default=["s", "b", "l"], choices=["s", "b", "l"])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256, 768])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
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
    """One configuration: the bare step on one batch, its parts, then steps with the loader."""
    with tempfile.TemporaryDirectory() as output:
        compiled = str(device.type == "cuda").lower()
        overrides = [f"shards={options.shards}", f"output={output}", f"batch_size={batch}", f"compile={compiled}"]
        names = [options.model] if size == "s" else [options.model, f"vit_{size}"]
        config = load_config([*(str(JOBS / f"{name}.yaml") for name in names), *overrides, *options.set])
        run = build(config, Process(device=device))
        try:
            return {"device": name_of(device), **speeds(run)}
        finally:
            run.loader.close()


def speeds(run: Run) -> dict[str, object]:
    device, batches = run.process.device, iter(run.loader)
    batch = next(batches).to(device)
    flops = tower_flops(run, batch)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    product, product_flops = large_product(run)
    # What a step consists of, each with all that comes before it.
    until = seconds(
        {
            "towers": lambda: features(run, batch),
            "losses": lambda: loss(run, batch),
            "backward": lambda: loss(run, batch).backward(),
            "rest": lambda: update(run, batch),
            "product": product,
        },
        device,
    )
    step_s, product_s = until["rest"], until.pop("product")
    rate = flops / step_s
    peak = next((flop_s for name, flop_s in DENSE_BF16.items() if name in name_of(device)), None)
    half = AUTOCAST[run.config.precision] == torch.bfloat16
    return {
        "pairs_per_s": round(run.config.batch_size / step_s, 1),
        "step_s": round(step_s, 4),
        "tflop_per_s": round(rate / 1e12, 2),
        "mfu": round(rate / peak, 3) if peak and half else None,
        "share_of_products": round(rate * product_s / product_flops, 3),
        "share": {
            name: round((until[name] - before) / step_s, 3)
            for name, before in zip(until, [0.0, *until.values()], strict=False)
        },
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if device.type == "cuda" else None,
        **with_loader(run, batches),
    }


def seconds(calls: dict[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    """Median of several of each call, in turn, each to its end on the device."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(WARM_UP + REPEATS):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if index >= WARM_UP:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken) for name, taken in times.items()}


def tower_flops(run: Run, batch: Batch) -> float:
    """Of the towers and projections, forwards and backwards, without what checkpointed activations compute twice."""
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as forwards, torch.no_grad():
        features(run, batch)
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as once:
        backwards(features(run, batch))
    run.optimizer.zero_grad(set_to_none=True)
    recomputed = run.config.checkpoint_activations or run.config.micro_batch_size is not None
    return once.get_total_flops() - (forwards.get_total_flops() if recomputed else 0)


def features(run: Run, batch: Batch) -> Pairs:
    with autocast(run):
        return run.model.features(batch)


def loss(run: Run, batch: Batch) -> Tensor:
    run.optimizer.zero_grad(set_to_none=True)
    with autocast(run):
        value: Tensor = run.wrapped(batch).loss
    return value


def backwards(pairs: Pairs) -> None:
    learned = [value for value in vars(pairs).values() if isinstance(value, Tensor) and value.requires_grad]
    torch.autograd.backward(learned, [torch.ones_like(value) for value in learned])


def large_product(run: Run) -> tuple[Callable[[], object], float]:
    """One large matrix product in the towers' precision, and its arithmetic in operations."""
    device = run.process.device
    n = PRODUCT if device.type == "cuda" else PRODUCT // 8
    x = torch.rand(n, n, device=device, dtype=AUTOCAST[run.config.precision])
    return lambda: x @ x, 2.0 * n**3


def with_loader(run: Run, batches: Iterator[Batch]) -> dict[str, float]:
    """Steps as training takes them, and the share of their time spent waiting for the loader."""
    meter = Meter()
    for index in range(WARM_UP + REPEATS):
        if index == WARM_UP:
            meter.restart()
        with meter.waiting():
            batch = next(batches).to(run.process.device, non_blocking=True)
        update(run, batch)
        meter.samples += run.config.batch_size
    read = meter.read()
    return {
        "pairs_per_s_with_loader": round(read["samples_per_s"], 1),
        "data_wait_share": round(read["data_wait_share"], 3),
    }


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


if __name__ == "__main__":
    main()
