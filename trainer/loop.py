"""The training loop: what a step is, and what happens between steps. It never asks which model it trains."""

import logging
import math
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from common.config import to_yaml
from common.devices import torch_dtype
from common.errors import UserError, prefixed
from common.json_file import write_object
from trainer.batch import Batch, Losses
from trainer.build import Run, build, full_model
from trainer.checkpoints.model import save_model
from trainer.checkpoints.run import newest, restore, save
from trainer.config import TrainConfig, as_dict
from trainer.data.preprocess import PreprocessConfig
from trainer.distributed.process import average, average_loose_gradients, gradient_norm, report_lost_processes, session
from trainer.metrics.progress import Progress
from trainer.metrics.writers import Meter, Metrics, named_values
from trainer.models.nonfinite import describe_nonfinite
from trainer.optim import learning_rate

logger = logging.getLogger(__name__)

HEADLINES = ("/accuracy", "/recall@5", "/satisfied")


class StoppedError(Exception):
    """The run was told to stop by a signal, and has saved itself."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def train(config: TrainConfig) -> None:
    """A whole run, from its last checkpoint if it has one. Every process of the run calls it.

    Raises UserError for what the user can mend, StoppedError after a signal.
    """
    with session(config.device, config.parallel.timeout_s) as process:
        output = Path(config.output)
        with writable(output):
            output.mkdir(parents=True, exist_ok=True)
        run = build(config, process)
        try:
            resume(run, output / "checkpoints")
            with report_lost_processes(process, f"Checkpoints in {output / 'checkpoints'} are complete"):
                go_on(run, output)
        finally:
            run.loader.close()


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """What the system says of a file or folder that cannot be written, as the user's error."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error}; make room, or give an output= where you may write, then the same command goes on"
        ) from None


def resume(run: Run, folder: Path) -> None:
    """Continue from the newest checkpoint, or begin."""
    last = newest(folder)
    if last and run.config.resume == "never":
        raise UserError(f"{last} is there and resume=never; give another output=, or resume=auto to go on")
    if last:
        anyway = run.config.resume == "anyway"
        run.step, position = restore(last, run, run.config, run.process, anyway)
        run.loader.load_state_dict(position)
    if run.process.is_main:
        with writable(folder.parent / "config.yaml"):
            (folder.parent / "config.yaml").write_text(to_yaml(run.config), encoding="utf-8")
        size = sum(parameter.numel() for parameter in run.model.parameters() if parameter.requires_grad)
        logger.info(
            "%s, %.1f M parameters, %d samples in the data, batch %d, %s, %d process%s on %s, %s",
            run.config.model_name, size / 1e6, run.loader.n_samples, run.config.batch_size, run.precision, run.process.world_size,
            "es" if run.process.world_size > 1 else "", run.process.device.type, f"from {last}" if last else "from the start",
        )  # fmt: skip


def go_on(run: Run, output: Path) -> None:
    """Every step that is left, then the finished model and its evaluation."""
    config, steps = run.config, run.config.optim.steps
    metrics = Metrics(output, config, run.step) if run.process.is_main else None
    meter, batches = Meter(), iter(run.loader)
    try:
        with stop_signals() as stop, Progress(run.step, steps, run.process.is_main) as progress:
            while run.step < steps:
                with meter.waiting():
                    batch = next(batches).to(run.process.device, non_blocking=True)
                values = update(run, batch, stopping=stop.number is not None)
                meter.samples += config.batch_size
                stopping = values.pop("stop") > 0
                if run.step % config.log.every == 0 or run.step == steps:
                    values |= meter.read()
                    meter.restart()
                    if metrics:
                        metrics.write(run.step, values)
                with meter.paused():
                    if config.evaluation.every and run.step % config.evaluation.every == 0 and run.step < steps:
                        record(run, metrics)
                    if run.step % config.save.every == 0 or run.step == steps or stopping:
                        checkpoint(run, output)
                progress.advance(run.step, values)
                if stopping and run.step < steps:
                    raise StoppedError(
                        stop.number or signal.SIGTERM,
                        f"stopped at step {run.step} of {steps} and saved; the same command goes on from there",
                    )
        finish(run, output, metrics)
    finally:
        if metrics:
            metrics.close()


def update(run: Run, batch: Batch, stopping: bool = False) -> dict[str, float]:
    """One step of the optimizer; returns what there is to log, means over the ranks.

    Raises UserError if loss or gradient is not finite, before anything is changed.
    """
    rate = learning_rate(run.step, run.config.optim)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    with autocast(run):
        losses: Losses = run.wrapped(batch)
    run.scaler.scale(losses.loss).backward()
    average_loose_gradients(run.model, run.wrapped, run.process)
    run.scaler.unscale_(run.optimizer)
    values = measure(run, losses, stopping)
    # A gradient beyond fp16 is what the scaler is there for: it leaves out the step and lowers its scale.
    overflow = run.scaler.is_enabled() and not math.isfinite(values["grad_norm"])
    if not math.isfinite(values["loss/total"]) or not (math.isfinite(values["grad_norm"]) or overflow):
        raise UserError(
            describe_nonfinite(run.model, batch, values, run.step + 1, newest(Path(run.config.output) / "checkpoints"))
        )
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.optimizer.zero_grad(set_to_none=True)
    run.model.clamp_parameters()
    run.step += 1
    values["lr"] = rate
    if run.scaler.is_enabled():
        values |= {"fp16/scale": run.scaler.get_scale(), "fp16/skipped": float(overflow)}
    return values


def autocast(run: Run) -> torch.autocast:
    """The precision of the towers; the model takes its losses out of it."""
    dtype = torch_dtype(run.precision)
    return torch.autocast(run.process.device.type, dtype=dtype, enabled=dtype != torch.float32)


def measure(run: Run, losses: Losses, stopping: bool) -> dict[str, float]:
    """Loss, terms and gradient norm, means over the ranks: one exchange and one wait for the device."""
    values = named_values(losses)
    norm = gradient_norm(run.model.parameters())
    stop = torch.tensor(float(stopping), device=norm.device)
    together = torch.stack([value.float() for value in (*values.values(), norm, stop)])
    return dict(zip((*values, "grad_norm", "stop"), average(together, run.process).tolist(), strict=True))


def checkpoint(run: Run, output: Path) -> None:
    save(
        output / "checkpoints", run.step, run, run.loader.state_dict(), as_dict(run.config), run.process, run.config.save.keep
    )  # fmt: skip


def record(run: Run, metrics: Metrics | None) -> dict[str, float]:
    """Evaluate, and write it down. Every rank does, so that none waits for long in an exchange."""
    model = full_model(run).eval()
    devices = [run.process.device] if run.process.device.type == "cuda" else []
    with torch.random.fork_rng(devices), prefixed("evaluation."):
        values = run.evaluation(model, run.tokenizer, run.process.device)
    run.model.train()
    if metrics and values:
        metrics.write(run.step, values)
        headlines = [f"{name} {value:.3f}" for name, value in values.items() if name.endswith(HEADLINES)]
        logger.info("step %d: %s", run.step, ", ".join(headlines))
    return values


def finish(run: Run, output: Path, metrics: Metrics | None) -> None:
    """The model as a folder of its own, and what it can do."""
    model = full_model(run)
    if run.process.is_main:
        draft, final = output / ".model", output / "model"
        shutil.rmtree(draft, ignore_errors=True)
        preprocess = PreprocessConfig(size_px=run.config.model.image.size_px)
        facts = {"steps": run.step, "samples": run.step * run.config.batch_size, "training": as_dict(run.config)}
        with writable(final):
            save_model(draft, model, tokenizer=run.tokenizer, preprocess=preprocess, record=facts)
            shutil.rmtree(final, ignore_errors=True)
            draft.rename(final)
        bad = {reason: n for reason, n in run.loader.counts.items() if n}
        logger.info("%s is finished after %d steps; samples of this process: %s", final, run.step, bad)
    values = record(run, metrics)
    if run.process.is_main and values:
        with writable(output / "evaluation.json"):
            write_object(values, output / "evaluation.json")


class Stop:
    """The signal that came, if one did."""

    number: int | None = None


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Note SIGTERM and SIGINT, for the loop to end after its step; a second one ends at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # under Ray Train, which stops its workers itself
        yield stop
        return

    def note(number: int, frame: object) -> None:
        if stop.number is not None:
            os._exit(128 + number)
        stop.number = number
        logger.warning("%s: saving after this step", signal.Signals(number).name)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
