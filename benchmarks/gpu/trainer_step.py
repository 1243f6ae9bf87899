"""Training on a GPU: samples/s, model FLOP utilisation, memory, and where a step spends its time.

    python -m benchmarks.gpu.trainer_step [--models hycoclip phyclip] [--batches 768 256 largest]
                                          [--sides ours bf16_parameters eager plain plain_compiled] [--shards FOLDER]

The papers' models with a ViT-B/16, in bfloat16 on a GPU. `ours` is the trainer with compiled blocks and its loader;
`bf16_parameters` the same with weights in bfloat16, `eager` without torch.compile. `plain` has towers of standard modules
(benchmarks/plain.py), the losses as printed and torch's AdamW, on one batch that stays on the device; `plain_compiled`
the same with compiled blocks. `largest` is the batch that is predicted to fill the memory, from the peaks of the others.
Without --shards, shards are drawn (benchmarks/gpu/data.py). All models of a side come before the next side.

- pairs_per_s, step_ms, mfu, share_of_products: steps on one batch. The FLOPs are those of the towers, forward and
  backward; `mfu` divides by the data sheet's peak, `share_of_products` by a large matrix product of the same run.
- towers_share, losses_share: parts of a step, each measured alone, forward and backward; the rest is the optimizer and
  the checks.
- pairs_per_s_with_loader, data_wait_share: steps with the loader; the share of time spent waiting for data. The steps
  of a large batch are few, and begin with batches that lie ready: `decode` says if the loader keeps up.
- profile: kernels by kind, gaps between kernels and what the host did meanwhile, calls with which the host waits; of a
  few steps with the loader. OUT/trainer_step_MODEL_BATCH.json.gz is the trace of the first batch size.

Aims for HyCoCLIP and PHyCLIP at 768: mfu >= 0.4, 0.45 with bf16_parameters, data_wait_share < 0.02,
losses_share < 0.03.
"""

import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.data import training_shards
from benchmarks.gpu.session import Session, parser_of, run
from benchmarks.gpu.timing import Timing, ceilings, peak_gib, reset_peak, synchronize, time_calls, utilisation
from benchmarks.gpu.tracing import trace
from benchmarks.plain import plain_model
from hypergrit_common.processes import n_cpus
from trainer.batch import Batch, Losses
from trainer.config import TrainConfig, load_config
from trainer.data.loader import Loader
from trainer.distributed.process import Process
from trainer.training.accumulate import tower_blocks
from trainer.training.build import Training, build, build_tokenizer
from trainer.training.step import BatchCopies, PendingStep, autocast, start_step, update
from trainer.training.writers import Meter

Speed = Callable[[float, Timing], dict[str, Any]]
"""The figures of a step, from its FLOPs and its time."""
JOBS = Path(__file__).parents[2] / "jobs" / "train"
LARGEST = "largest"
OURS = {
    "ours": (),
    "bf16_parameters": ("precision=bf16", "bf16_parameters=true"),
    "eager": ("compile=false",),
}
"""Sides that are the trainer -> their settings."""
SIDES = (*OURS, "plain", "plain_compiled")
SPARE = 0.94  # share of the memory that the predicted largest batch may take
SMALLER = 0.85  # of the predicted batch, if it does not fit
COUNTED = 32  # pairs whose FLOPs are counted, since they grow in proportion
LOADER_S = 15.0
FEW_PREPARED = 2048  # pairs above which loader processes prepare one batch each: 10,000 pairs take 3 GB
TINY = (
    "model.image.size_px=32",
    "model.image.kwargs={embed_dim: 32, depth: 2, num_heads: 2, patch_size: 8}",
    "model.text.vocab_size=514",
    "model.text.context_length=32",
    "model.text.width=32",
    "model.text.layers=2",
    "model.text.heads=2",
    "model.embed_dim=32",
)
BATCHES, TINY_BATCHES = ("768", "256", LARGEST), ("8", LARGEST)


def main() -> None:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--models", nargs="+", choices=["hycoclip", "phyclip"], default=["hycoclip", "phyclip"])
    parser.add_argument("--batches", nargs="+", help="batch sizes, or largest; default: 768 256 largest")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="what to measure")
    parser.add_argument("--shards", help="folder of training shards")
    parser.add_argument("--workers", type=int, default=max(1, n_cpus() - 2), help="loader processes")
    run("trainer_step", parser.parse_args(), measure)


def measure(session: Session) -> None:
    """Measure each batch size, model and side."""
    options = session.options
    with session.measure(part="ceilings") as row:
        row |= ceilings(session.device, tiny=options.tiny)
    product = session.rows[0]["bf16_product_tflop_s"]
    with tempfile.TemporaryDirectory() as folder:
        shards = options.shards or drawn_shards(Path(folder, "shards"), tiny=options.tiny)
        for given in options.batches or (TINY_BATCHES if options.tiny else BATCHES):
            for side in sides(session) if given != LARGEST else ["ours"]:
                for model in options.models:
                    size = largest_batch(session, model) if given == LARGEST else int(given)
                    overrides = OURS.get(side, ())
                    config = config_of(session, model, size, shards, Path(folder, "run"), overrides)
                    measure_side(session, config, side, product)
                    if given == LARGEST and "memory" in session.rows[-1].get("error", ""):
                        smaller = dataclasses.replace(config, batch_size=int(size * SMALLER) // 128 * 128)
                        measure_side(session, smaller, side, product)


def sides(session: Session) -> list[str]:
    """Return the sides to measure. On a CPU, compilation would take minutes."""
    return [side for side in session.options.sides if session.device.type == "cuda" or side != "plain_compiled"]


def measure_side(session: Session, config: TrainConfig, side: str, product_tflop_s: float) -> None:
    """Measure one configuration of one side."""
    torch.compiler.reset()  # code compiled for another batch size would make this one's sizes symbolic

    def speed(flops: float, step: Timing) -> dict[str, Any]:
        found = {"step_ms": 1e3 * step.median, "step_ms_high": 1e3 * step.high, "peak_gib": peak_gib(session.device)}
        found["pairs_per_s"] = config.batch_size / step.median
        return found | utilisation(flops, step.median, session.device, product_tflop_s)

    with session.measure(model=config.model_name, batch=config.batch_size, side=side) as row:
        if side in OURS:
            measure_ours(session, config, row, speed)
        else:
            measure_plain(session, config, row, speed, compiled=side == "plain_compiled")


def drawn_shards(folder: Path, *, tiny: bool) -> str:
    """Write training shards and return their folder."""
    return training_shards(folder, n_samples=48, n_shards=2, side_px=40) if tiny else training_shards(folder)


def config_of(
    session: Session, model: str, batch: int, shards: str, output: Path, settings: Sequence[str] = ()
) -> TrainConfig:
    """Return the configuration of a run."""
    options, overrides = session.options, [f"shards={shards}", f"output={output}", f"batch_size={batch}"]
    overrides += [f"data.index_folder={output}_index", f"device={session.device}", f"data.workers={options.workers}"]
    overrides += [f"data.prefetch={1 if batch > FEW_PREPARED else 2}"]
    overrides += ["log.tensorboard=false", *settings]
    if options.tiny:
        merges = output.with_name("merges.txt")
        merges.write_text("#version: 0.2\n", encoding="utf-8")
        overrides += [*TINY, f"tokenizer={merges}", "data.workers=1"]
    jobs = [str(JOBS / f"{name}.yaml") for name in (model, "vit_b")]
    return load_config([*jobs, *overrides])


def features(run: Training, batch: Batch) -> Batch:
    """Run the towers' forward pass."""
    with autocast(run):
        return run.model.features(batch)


def backward(pairs: Batch) -> None:
    """Run the towers' backward pass, with ones as the gradients of their outputs."""
    outputs = [stream.rows for stream in pairs.streams.values() if stream.rows.requires_grad]
    torch.autograd.backward(outputs, [torch.ones_like(value) for value in outputs])


def with_loader(run: Training, steps: int, warm_up: int) -> dict[str, float]:
    """Measure the throughput of steps with the loader, and the share of time spent waiting for data."""
    meter = Meter()
    step = steps_with_loader(run, meter)
    for index in range(warm_up + steps):
        if index == warm_up:
            meter.restart()
        step()
    synchronize(run.process.device)
    read = meter.read()
    return {
        "pairs_per_s_with_loader": round(read["samples_per_s"], 1),
        "data_wait_share": round(read["data_wait_share"], 3),
    }


def largest_batch(session: Session, model: str) -> int:
    """Predict the largest batch that fits into the memory, from the peaks of two others; without them, take twice."""
    rows = [row for row in session.rows if row.get("model") == model and row["side"] == "ours" and "peak_gib" in row]
    rows.sort(key=lambda row: row["batch"])
    known = [row["batch"] for row in rows]
    if session.device.type != "cuda" or len(rows) < 2:
        return 2 * max(known, default=8 if session.options.tiny else 768)
    slope = (rows[-1]["peak_gib"] - rows[0]["peak_gib"]) / (known[-1] - known[0])
    total = torch.cuda.get_device_properties(session.device).total_memory / 2**30
    room = SPARE * total - rows[-1]["peak_gib"]
    return int(known[-1] + room / slope) // 128 * 128


def measure_ours(session: Session, config: TrainConfig, row: dict[str, Any], speed: Speed) -> None:
    """Measure the trainer. Figures that are known before an error are kept."""
    device, is_tiny = session.device, session.options.tiny
    trained = build(config, Process(device=device))
    try:
        batch = next(iter(loader_of(config, 0, trained.model.needs))).to(device)
        flops = count_flops(lambda part: features(trained, part), batch)
        trained.optimizer.zero_grad(set_to_none=True)
        start = time.perf_counter()
        update(trained, batch)
        row["first_step_s"] = time.perf_counter() - start
        reset_peak(device)  # not before: compilation takes memory too
        seconds = 0.0 if is_tiny else 5.0
        step = time_calls(lambda: start_step(trained, batch), device, seconds=seconds)
        row |= speed(flops, step)
        losses, towers = loss_call(trained, batch), lambda: backward(features(trained, batch))
        row["losses_ms"] = 1e3 * time_calls(losses, device, seconds=seconds / 4).median
        row["towers_ms"] = 1e3 * time_calls(towers, device, seconds=seconds / 4).median
        row["losses_share"], row["towers_share"] = (row[f"{part}_ms"] / row["step_ms"] for part in ("losses", "towers"))
        trained.optimizer.zero_grad(set_to_none=True)
        steps = 1 if is_tiny else int(min(200, max(10, LOADER_S / step.median)))
        row |= with_loader(trained, steps, warm_up=1 if is_tiny else 5)
        path = session.path(f"{config.model_name}_{config.batch_size}.json.gz")
        is_first = not any("profile" in done for done in session.rows if done.get("model") == config.model_name)
        row["profile"] = trace(steps_with_loader(trained, Meter()), 1 if is_tiny else 3, device, path, keep=is_first)
    finally:
        trained.loader.close()


def loader_of(config: TrainConfig, workers: int, needs: frozenset[str]) -> Loader:
    """Return a loader with so many processes."""
    return Loader(
        dataclasses.replace(config.data, workers=workers),
        tokenizer=build_tokenizer(config),
        size_px=config.model.image.size_px,
        batch=config.batch_size,
        needs=needs,
    )


def steps_with_loader(trained: Training, meter: Meter) -> Callable[[], None]:
    """Return a function that does one step of the training loop: each step is read after the next one is queued."""
    copies, waiting = BatchCopies(trained.loader, trained.process.device), list[PendingStep]()

    def step() -> None:
        with meter.waiting():
            batch = copies.take()
        waiting.append(start_step(trained, batch))
        with meter.waiting():
            copies.start()
        if len(waiting) > 1:
            waiting.pop(0).read()
        meter.samples += trained.config.batch_size

    step()  # starts the loader
    return step


def loss_call(trained: Training, batch: Batch) -> Callable[[], None]:
    """Return a function that computes the losses and their gradients, from fixed features."""
    with torch.no_grad():
        fixed = features(trained, batch)
    given = fixed.with_rows({name: part.rows.float().requires_grad_() for name, part in fixed.streams.items()})

    def call() -> None:
        trained.optimizer.zero_grad(set_to_none=True)
        trained.model.losses(given).loss.backward()

    return call


def measure_plain(session: Session, config: TrainConfig, row: dict[str, Any], speed: Speed, *, compiled: bool) -> None:
    """Measure the plain form on one batch."""
    device = session.device
    torch.manual_seed(0)
    model = plain_model(config.model_name, config.model).to(device).train()
    batch = next(iter(loader_of(config, 0, model.needs))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def towers(part: Batch) -> Batch:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return model.features(part)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            losses: Losses = model(batch)
        losses.loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    flops = count_flops(towers, batch)
    optimizer.zero_grad(set_to_none=True)
    if compiled:
        for block in tower_blocks(model):
            block.forward = torch.compile(block.forward)
    step()
    reset_peak(device)  # not before: compilation takes memory too
    row |= speed(flops, time_calls(step, device, seconds=0 if session.options.tiny else 5))


def count_flops(run_towers: Callable[[Batch], Batch], batch: Batch) -> float:
    """Return the FLOPs of the towers for a batch, forward and backward, from those of its first pairs."""
    n, counted = len(batch["image"].rows), min(COUNTED, len(batch["image"].rows))
    part = dataclasses.replace(batch.map(lambda tensor: tensor[:counted]), keys=batch.keys[:counted])
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        backward(run_towers(part))
    synchronize(batch["image"].rows.device)
    return float(counter.get_total_flops()) * n / counted


if __name__ == "__main__":
    main()
