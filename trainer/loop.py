"""The training loop: a step of the optimizer, and the work between steps. It is the same for every model."""

import logging
import math
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from common.config import to_yaml
from common.devices import torch_dtype
from common.errors import UserError, prefixed
from common.json_file import write_object
from trainer.batch import Batch, Losses
from trainer.build import Run, build, full_model
from trainer.checkpoints.model import save_model
from trainer.checkpoints.run import newest_checkpoint, restore_checkpoint, save_checkpoint
from trainer.config import TrainConfig, as_dict, differences
from trainer.data.preprocess import PreprocessConfig
from trainer.data.versions import check_shards, record_shards
from trainer.distributed.process import (
    average,
    average_unsharded_gradients,
    gradient_norm,
    process_group,
    report_lost_processes,
)
from trainer.distributed.signals import stop_signals
from trainer.metrics.progress import Progress
from trainer.metrics.writers import Meter, Metrics, named_values
from trainer.models.nonfinite import describe_nonfinite
from trainer.optim import learning_rate

logger = logging.getLogger(__name__)

LOGGED_RESULTS: Final = ("/accuracy", "/recall@5", "/order", "/auc", "/ap")
"""Endings of the evaluation results that are logged; metrics.jsonl has all of them."""


class StoppedError(Exception):
    """A signal stopped the run, which has saved a checkpoint."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.signal_number = signal_number


def train(config: TrainConfig) -> None:
    """Train a model, from its last checkpoint if one exists. Every process of the run calls this function.

    Raises UserError for errors that the user can fix, and StoppedError after a signal.
    """
    with process_group(config.device, config.parallel.timeout_s) as process:
        output = Path(config.output)
        with write_errors_explained(output):
            output.mkdir(parents=True, exist_ok=True)
        run = build(config, process)
        try:
            resume(run, output)
            with report_lost_processes(process, f"Checkpoints in {output / 'checkpoints'} are complete"):
                run_loop(run, output)
        finally:
            run.loader.close()


@contextmanager
def write_errors_explained(path: Path) -> Iterator[None]:
    """Raise UserError, naming `path`, for any error of the file system."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error}; free disk space or give another output=, then repeat the command"
        ) from None


def resume(run: Run, output: Path) -> None:
    """Restore the newest checkpoint, if one exists, and write the resolved configuration to OUTPUT/config.yaml.

    Raises UserError if the configuration or changed shards do not allow resuming from this checkpoint.
    """
    last = newest_checkpoint(output / "checkpoints")
    if last and run.config.resume == "never":
        raise UserError(f"{last} exists and resume=never; give another output=, or resume=auto to continue this run")
    if last:

        def changed(saved: dict[str, Any]) -> list[str]:
            return [] if run.config.resume == "anyway" else differences(saved, run.config)

        if run.config.resume != "anyway":
            check_shards(run.loader.urls, output)
        run.step, loader_state = restore_checkpoint(last, run, run.process, changed)
        run.loader.load_state_dict(loader_state)
    if run.process.is_main:
        with write_errors_explained(output / "config.yaml"):
            (output / "config.yaml").write_text(to_yaml(run.config), encoding="utf-8")
            record_shards(run.loader.urls, output)
        log_summary(run, last)


def log_summary(run: Run, last: Path | None) -> None:
    """Log the sizes of the run and the checkpoint that it resumes from."""
    n_parameters = sum(parameter.numel() for parameter in run.model.parameters() if parameter.requires_grad)
    world_size = run.process.world_size
    parts = [
        f"{n_parameters / 1e6:.1f} M trainable parameters",
        f"{run.loader.n_samples} training samples",
        f"batch size {run.config.batch_size}",
        run.precision,
        f"{world_size} process{'es' if world_size > 1 else ''} on {run.process.device.type}",
        f"resuming from {last}" if last else "starting at step 0",
    ]
    logger.info("%s: %s", run.config.model_name, ", ".join(parts))


def run_loop(run: Run, output: Path) -> None:
    """Run the remaining steps, then save and evaluate the trained model.

    Raises StoppedError if a signal arrives, after saving a checkpoint.
    """
    config, steps = run.config, run.config.optim.steps
    metrics = Metrics(output, config.log, as_dict(config), step=run.step, steps=steps) if run.process.is_main else None
    meter, batches = Meter(), iter(run.loader)
    try:
        with stop_signals() as request, Progress(run.step, steps, run.process.is_main) as progress:
            while run.step < steps:
                with meter.waiting():
                    batch = next(batches).to(run.process.device, non_blocking=True)
                values = update(run, batch, stopping=request.signal_number is not None)
                meter.samples += config.batch_size
                stopping = values.pop("stop") > 0
                if run.step % config.log.every == 0 or run.step == steps:
                    values |= meter.read()
                    meter.restart()
                    if metrics:
                        metrics.write(run.step, values)
                with meter.paused():
                    evaluate_and_save_if_due(run, output, metrics, stopping)
                progress.advance(run.step, values)
                if stopping and run.step < steps:
                    raise StoppedError(
                        request.signal_number or signal.SIGTERM,
                        f"stopped at step {run.step} of {steps} after saving a checkpoint; repeat the command to "
                        "resume",
                    )
        finish(run, output, metrics)
    finally:
        if metrics:
            metrics.close()


def evaluate_and_save_if_due(run: Run, output: Path, metrics: Metrics | None, stopping: bool) -> None:
    """Evaluate the model and save a checkpoint, each if it is due after this step. Collective.

    The evaluation of the last step belongs to `finish`.
    """
    config, is_last = run.config, run.step == run.config.optim.steps
    if config.evaluation.every and run.step % config.evaluation.every == 0 and not is_last:
        evaluate(run, metrics)
    if run.step % config.save.every == 0 or is_last or stopping:
        checkpoint(run, output)


def update(run: Run, batch: Batch, stopping: bool = False) -> dict[str, float]:
    """Do one step of the optimizer and return the values to log, averaged over the ranks. Collective.

    The value "stop" is above 0 if `stopping` is true on any rank. Raises UserError if the loss or the gradient is not
    finite; parameters and optimizer are then unchanged.
    """
    rate = learning_rate(run.step, run.config.optim)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    with autocast(run):
        losses: Losses = run.wrapped(batch)
    run.scaler.scale(losses.loss).backward()
    average_unsharded_gradients(run.model, run.wrapped, run.process)
    run.scaler.unscale_(run.optimizer)
    values = mean_values(run, losses, stopping)
    # fp16 gradients may overflow: the scaler then skips the step and lowers its scale.
    overflow = run.scaler.is_enabled() and not math.isfinite(values["grad_norm"])
    if not math.isfinite(values["loss/total"]) or not (math.isfinite(values["grad_norm"]) or overflow):
        last = newest_checkpoint(Path(run.config.output) / "checkpoints")
        raise UserError(describe_nonfinite(run.model, batch, values, run.step + 1, last))
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
    """A context in which the towers compute in the precision of the run. Models leave it to compute their losses."""
    dtype = torch_dtype(run.precision)
    return torch.autocast(run.process.device.type, dtype=dtype, enabled=dtype != torch.float32)


def mean_values(run: Run, losses: Losses, stopping: bool) -> dict[str, float]:
    """Loss, terms, gradient norm and `stopping`, averaged over the ranks.

    They are stacked into one tensor: one all-reduce, and one synchronisation with the device, per step.
    """
    values = named_values(losses)
    norm = gradient_norm(run.model.parameters())
    stop = torch.tensor(float(stopping), device=norm.device)
    stacked = torch.stack([value.float() for value in (*values.values(), norm, stop)])
    return dict(zip((*values, "grad_norm", "stop"), average(stacked, run.process).tolist(), strict=True))


def checkpoint(run: Run, output: Path) -> None:
    """Save a checkpoint in OUTPUT/checkpoints. Collective."""
    save_checkpoint(
        output / "checkpoints",
        run.step,
        run,
        loader_state=run.loader.state_dict(),
        config=as_dict(run.config),
        process=run.process,
        keep=run.config.save.keep,
    )


def evaluate(run: Run, metrics: Metrics | None) -> dict[str, float]:
    """Evaluate the model, write the results to the metrics and return them. Collective.

    Every rank computes the full evaluation. If only one did, the collectives of the others could time out.
    """
    model = full_model(run).eval()
    devices = [run.process.device] if run.process.device.type == "cuda" else []
    with torch.random.fork_rng(devices), prefixed("evaluation."):
        results = run.evaluation(model, run.tokenizer, run.process.device)
    run.model.train()
    if metrics and results:
        metrics.write(run.step, results)
        logged = [f"{name} {value:.3f}" for name, value in results.items() if name.endswith(LOGGED_RESULTS)]
        logger.info("step %d: %s", run.step, ", ".join(logged))
    return results


def finish(run: Run, output: Path, metrics: Metrics | None) -> None:
    """Save the trained model in OUTPUT/model and evaluate it, with results in OUTPUT/evaluation.json. Collective."""
    model = full_model(run)
    if run.process.is_main:
        draft, final = output / ".model", output / "model"
        shutil.rmtree(draft, ignore_errors=True)
        preprocess = PreprocessConfig(size_px=run.config.model.image.size_px)
        facts = {"steps": run.step, "samples": run.step * run.config.batch_size, "training": as_dict(run.config)}
        with write_errors_explained(final):
            save_model(draft, model, tokenizer=run.tokenizer, preprocess=preprocess, record=facts)
            shutil.rmtree(final, ignore_errors=True)
            draft.rename(final)
        counts = {reason: n for reason, n in run.loader.counts.items() if n}
        logger.info("%s: model saved after %d steps; samples read by this process: %s", final, run.step, counts)
    results = evaluate(run, metrics)
    if run.process.is_main and results:
        with write_errors_explained(output / "evaluation.json"):
            write_object(results, output / "evaluation.json")
