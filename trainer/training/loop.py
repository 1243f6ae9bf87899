"""The training loop: steps of the optimizer, and the work between them. It is the same for every model."""

import dataclasses
import gc
import logging
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from hypergrit_common.config import to_yaml
from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError
from hypergrit_common.json_file import write_object
from trainer.checkpoints.folder import CHECKPOINTS, locked, newest_checkpoint, open_run_folder
from trainer.checkpoints.run import restore_checkpoint
from trainer.checkpoints.writer import CheckpointWriter
from trainer.config import TrainConfig, as_dict, differences
from trainer.data.config import SYNTHETIC
from trainer.data.listing import check_shards, record_shards
from trainer.data.synthetic import write_synthetic_shard
from trainer.distributed.gather import all_ranks, on_rank_0
from trainer.distributed.process import Process, StopRequest, process_group, report_lost_processes, stop_signals
from trainer.inference.hub import write_card
from trainer.training.build import Training, build
from trainer.training.health import Health
from trainer.training.memory import SMALL_MACHINE
from trainer.training.profile import Profile
from trainer.training.results import (
    StoppedError,
    evaluate,
    log_file,
    save_trained_model,
    write_errors_explained,
)
from trainer.training.step import BatchCopies, PendingStep, is_logged, start_step
from trainer.training.writers import Meter, Metrics, Progress

logger = logging.getLogger(__name__)

LARGE_BATCH: Final = 256
"""Pairs per step from which a job is one of the papers' sizes, which train on GPUs."""

MANY_DRAWS: Final = 100
"""Draws of each sample from which a head is likely to overfit; the papers' jobs have about 20."""

COLLECT_EVERY: Final = 1000
"""Steps between two collections of garbage. Steps leave none, but plugins may."""


def train(config: TrainConfig) -> None:
    """Train a model, from its last checkpoint if one exists. Every process of the run calls this function.

    Raises UserError for errors that the user can fix, and StoppedError after a signal.
    """
    with (
        process_group(config.device, config.parallel.timeout_s) as process,
        open_run_folder(config.output, process) as folder,
        ExitStack() as stack,
    ):
        with write_errors_explained(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
            on_rank_0(lambda: stack.enter_context(locked(folder.path)))
            stack.enter_context(log_file(folder.path, process.is_main))
        if config.data.shards == SYNTHETIC:
            shards = folder.path / SYNTHETIC
            with write_errors_explained(shards):
                on_rank_0(lambda: write_synthetic_shard(shards))
            config = dataclasses.replace(config, data=dataclasses.replace(config.data, shards=str(shards)))
        run = build(config, process)
        run.folder = folder
        try:
            resume(run)
            with report_lost_processes(process, f"Checkpoints in {folder.url}/{CHECKPOINTS} are complete"):
                run_loop(run)
        except StoppedError:
            raise
        except Exception:
            if process.heartbeat:
                process.heartbeat.has_failed = True
            raise
        finally:
            run.loader.close()


def resume(run: Training) -> None:
    """Restore the newest checkpoint, if one exists, and write the resolved configuration to OUTPUT/config.yaml.

    Raises UserError if the configuration or changed shards do not allow resuming from this checkpoint.
    """
    output, last, shown = run.folder.path, newest_on_all_ranks(run), run.folder.newest_checkpoint()
    if last and run.config.resume == "never":
        raise UserError(f"{shown} exists and resume=never; give another output=, or resume=auto to continue this run")
    if last:

        def changed(saved: dict[str, Any]) -> list[str]:
            if run.config.resume == "new_lr":
                saved = saved | {"optim": saved["optim"] | {"lr": run.config.optim.lr}}
            return [] if run.config.resume == "anyway" else differences(saved, run.config)

        if run.config.resume != "anyway":
            on_rank_0(partial(check_shards, run.loader.versions, run.loader.urls, output, run.folder.url))
        run.step, loader_state = restore_checkpoint(last, run, run.process, changed, run.folder.shown(last))
        run.model.begin_step(run.step)
        run.loader.load_state_dict(loader_state)
    if run.process.is_main:
        with write_errors_explained(output / "config.yaml"):
            with atomic_write(output / "config.yaml") as draft:
                draft.write_text(to_yaml(run.config), encoding="utf-8")
            record_shards(run.loader.versions, output)
        run.folder.upload_files()
        log_summary(run, shown)


def newest_on_all_ranks(run: Training) -> Path | None:
    """The newest checkpoint. Raises UserError if the ranks do not see the same one. Collective."""
    last = newest_checkpoint(run.folder.path / CHECKPOINTS)
    names = all_ranks(last.name if last else "none")
    if len(set(names)) > 1:
        raise UserError(
            f"the processes of the run see different checkpoints in {run.folder.url}: {', '.join(sorted(set(names)))}; "
            "give an output that all machines share, or the URL of an object store"
        )
    return last


def log_summary(run: Training, last: str | None) -> None:
    """Log the sizes of the run and the checkpoint that it resumes from."""
    n_parameters = sum(parameter.numel() for parameter in run.model.parameters() if parameter.requires_grad)
    world_size = run.process.world_size
    parts = [
        f"{n_parameters / 1e6:.1f} M trainable parameters",
        run.loader.size,
        f"batch size {run.config.batch_size}",
        run.precision,
        f"{world_size} process{'es' if world_size > 1 else ''} on {run.process.device.type}",
        f"resuming from {last}" if last else "starting at step 0",
    ]
    logger.info("%s: %s", run.config.model_name, ", ".join(parts))
    is_large = run.config.batch_size >= LARGE_BATCH and not run.config.data.features  # heads are small
    if run.process.device.type == "cpu" and is_large:
        logger.warning(
            "training %d pairs per step on a CPU: %s is an overlay for a first try on a small machine",
            run.config.batch_size,
            SMALL_MACHINE,
        )
    features, pairs = run.config.data.features, run.config.batch_size * run.config.optim.steps
    if features and (draws := pairs / run.loader.n_samples) > MANY_DRAWS:
        logger.warning(
            "each of the %d samples is drawn %.0f times: the head may overfit; give fewer steps, or watch held-out shards "
            "(evaluation.shards, evaluation.every)",
            run.loader.n_samples,
            draws,
        )


@dataclass(frozen=True, kw_only=True)
class Session:
    """The parts of a running loop. Metrics and health exist in the main process only."""

    run: Training
    writer: CheckpointWriter
    copies: BatchCopies
    metrics: Metrics | None
    health: Health | None
    request: StopRequest
    progress: Progress
    first_step: int  # number of completed steps at the start
    profile: Profile | None
    meter: Meter = field(default_factory=Meter)


def run_loop(run: Training) -> None:
    """Run the remaining steps, then save and evaluate the trained model. Collective.

    Raises StoppedError if a signal arrives, after saving a checkpoint.
    """
    config, is_main = run.config, run.process.is_main
    steps, plain = config.optim.steps, as_dict(config)
    metrics = Metrics(run.folder.path, config.log, plain, step=run.step, steps=steps) if is_main else None
    save = config.save
    writer = CheckpointWriter(run.folder, save.keep, run.process, save.keep_every, sharded=save.sharded)
    try:
        with stop_signals() as request, Progress(run.step, steps, is_main) as progress:
            session = Session(
                run=run,
                writer=writer,
                copies=BatchCopies(run.loader, run.process.device),
                metrics=metrics,
                health=Health(run) if is_main else None,
                request=request,
                progress=progress,
                first_step=run.step,
                profile=Profile(run, config.log.profile) if is_main and config.log.profile else None,
            )
            is_stopping = take_steps(session) or not finish(session)
            writer.wait()
            if is_main:
                run.folder.upload_files()
            if is_stopping:
                raise StoppedError(
                    request.signal_number or signal.SIGTERM,
                    f"stopped at step {run.step} of {steps} after saving a checkpoint; repeat the command to resume",
                )
    finally:
        if run.process.heartbeat:
            run.process.heartbeat.has_left = True  # the last checkpoint may take longer than the end of the others
        writer.close()
        if metrics:
            metrics.close()


@contextmanager
def collecting(is_on: bool) -> Iterator[None]:
    """Collect garbage now, and inside leave it to Python, or to explicit calls: it would interrupt any step otherwise."""
    was_on = gc.isenabled()
    gc.collect()
    (gc.enable if is_on else gc.disable)()
    try:
        yield
    finally:
        (gc.enable if was_on else gc.disable)()


@collecting(False)
def take_steps(session: Session) -> bool:
    """Take the remaining steps, with evaluations and checkpoints. Return True if a signal ends the run. Collective."""
    run, steps = session.run, session.run.config.optim.steps
    queue: deque[PendingStep] = deque()
    is_stopping = False
    while run.step < steps and not is_stopping:
        with session.meter.waiting():
            batch = session.copies.take()
        is_requested = session.request.signal_number is not None
        if session.profile:
            session.profile.before(batch)
        with first_step(session):
            queue.append(start_step(run, batch, stopping=is_requested, failed=session.writer.has_failed))
        if run.step < steps:
            with session.meter.waiting():
                session.copies.start()
        session.meter.samples += run.config.batch_size
        # One process stops after this step; several agree at their next report, since all must stop after the same one.
        is_stopping |= run.process.world_size == 1 and session.request.signal_number is not None
        # The values of a step are read once the next one has been queued, unless they are needed now.
        reads_now = is_due(run) or reads_at_once(run.process, is_requested)
        while len(queue) > (0 if reads_now or is_stopping else 1):
            is_stopping |= report(session, queue.popleft())
        with session.meter.paused():
            is_stopping = evaluate_and_save_if_due(session, is_stopping)
            if run.step % COLLECT_EVERY == 0:
                gc.collect()
    if session.profile:
        session.profile.finish()
    return is_stopping and run.step < steps


@contextmanager
def first_step(session: Session) -> Iterator[None]:
    """Log that the first step of a run compiles, and how long it took; other steps are not touched.

    A signal for all processes ends the compilers too. Raises StoppedError then, in place of their errors.
    """
    run, start = session.run, time.monotonic()
    if not run.is_compiled or run.step != session.first_step:
        yield
        return
    logger.info("compiling the blocks of the towers: the first step takes minutes, and so does the first evaluation")
    try:
        yield
    except Exception:
        if session.request.signal_number is None:
            raise
        message = f"stopped at step {run.step} while compiling; repeat the command to resume"
        raise StoppedError(session.request.signal_number, message) from None
    logger.info("the first step is compiled: %.0f s", time.monotonic() - start)


def is_due(run: Training) -> bool:
    """True after the last step, and after steps with a row of metrics, an evaluation or a checkpoint."""
    config, step = run.config, run.step
    periods = (config.log.every, config.save.every, config.evaluation.every)
    return step == config.optim.steps or any(n > 0 and step % n == 0 for n in periods)


def reads_at_once(process: Process, is_requested: bool) -> bool:
    """True if reading the values of a step costs nothing, or tells a single process to stop.

    Equal on all ranks, since they must stop after the same step.
    """
    return process.device.type == "cpu" or (is_requested and process.world_size == 1)


def report(session: Session, step: PendingStep) -> bool:
    """Read the values of a step, display them, and log them if they are due. Return True if a rank has to stop.

    Raises UserError if they are not finite, or if the last checkpoint could not be written. Collective.
    """
    run, values = session.run, step.read(session.writer.close)
    session.copies.note(step.announced())
    is_stopping = values.pop("stop") > 0
    if values.pop("failed") > 0:
        session.writer.wait()
    if is_logged(run.config, step.number):
        values |= session.meter.read()
        counts = session.copies.state["counts"]  # of this process since the start of the run
        if places := counts.get("token_places", 0):
            values |= {"data/padding_share": 1 - counts.get("tokens", 0) / places}
        if "boxes" in run.model.needs:
            n = counts.get("boxes", 0) / counts["samples"]
            values |= {"data/equal_phrases": counts.get("equal_phrases", 0), "data/boxes_per_sample": n}
        session.meter.restart()
        if session.metrics and session.health:
            session.metrics.write(step.number, values)
            session.health.check(step.number, values)
    session.progress.advance(step.number, values)
    return is_stopping


def evaluate_and_save_if_due(session: Session, is_stopping: bool) -> bool:
    """Evaluate the model and save a checkpoint, each if it is due after this step. Collective.

    Returns True if the run has to stop: `is_stopping`, or a signal that ended the evaluation. The evaluation of the
    last step belongs to `finish`.
    """
    run, is_last = session.run, session.run.step == session.run.config.optim.steps
    every = run.config.evaluation.every
    if every and run.step % every == 0 and not is_last and not is_stopping:
        with collecting(True):
            is_stopping = evaluate(run, session.metrics, session.request) is None
    if run.step % run.config.save.every == 0 or is_last or is_stopping:
        session.writer.save(run.step, run, session.copies.state, as_dict(run.config))
    return is_stopping


def finish(session: Session) -> bool:
    """Save the trained model in OUTPUT/model and evaluate it, with results in OUTPUT/evaluation.json. Collective.

    Returns False if a signal ended the evaluation.
    """
    run = session.run
    save_trained_model(run)
    results = evaluate(run, session.metrics, session.request)
    if run.process.is_main and results:
        with write_errors_explained(run.folder.path / "evaluation.json"):
            write_object(results, run.folder.path / "evaluation.json")
            write_card(run.folder.path / "model", results)
    return results is not None
