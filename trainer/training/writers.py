"""Writers of a run's metrics: metrics.jsonl, and the same numbers for TensorBoard and Weights & Biases.

A row of metrics.jsonl holds `step`, then values by name, such as loss/total, loss/contrastive, geometry/curvature, lr,
grad_norm. Rows with evaluation results hold names such as zero_shot/FOLDER/accuracy. `samples_per_s`,
`data_wait_share` and `paused_s` (by evaluations and checkpoints) depend on the machine; all others are equal in two runs
with the same seed on the same kind of CPU.
"""

import json
import logging
import math
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from torch import Tensor
from tqdm import tqdm

from hypergrit_common.disk import atomic_write, write_text
from hypergrit_common.errors import UserError
from hypergrit_common.files import read_limited
from hypergrit_common.text import duration_text, one_line
from hypergrit_common.urls import clean
from trainer.batch import Losses
from trainer.config import LogConfig
from trainer.metrics.curves import MAX_BYTES, parse_row

# Destinations of metrics beside metrics.jsonl: TensorBoard and Weights & Biases.


class Sink(NamedTuple):
    """A destination of metrics. `write` takes the step, and values by name."""

    write: Callable[[int, dict[str, float]], None]
    close: Callable[[], None]


def optional(module: str, setting: str, alternative: str) -> Any:
    """A module of an optional package. Raises UserError if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.rpartition(".")[2]
        raise UserError(
            f"{setting} needs the package {package} ({error}); pip install {package}, or {alternative}"
        ) from None


def tensorboard_sink(output: Path, step: int) -> Sink:
    """Return a sink that writes event files to OUTPUT/tensorboard, and remove the events after `step`.

    Raises UserError if tensorboard is not installed.
    """
    package = optional("torch.utils.tensorboard", "log.tensorboard=true", "set log.tensorboard=false")
    writer = package.SummaryWriter(str(output / "tensorboard"), purge_step=step + 1)

    def write(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return Sink(write, writer.close)


def wandb_sink(output: Path, project: str, training: dict[str, Any]) -> Sink:
    """Return a sink that writes to Weights & Biases. On resume it continues the run with the id in OUTPUT/wandb_id.

    Raises UserError if wandb is not installed or refuses the run, and for an unreadable id.
    """
    wandb = optional("wandb", f"log.wandb_project={project}", "remove this setting")
    id_file = output / "wandb_id"
    if not id_file.is_file():
        write_text(id_file, uuid.uuid4().hex[:12])
    try:
        run_id = read_limited(id_file, 1 << 10).decode()
    except (OSError, ValueError) as error:
        raise UserError(f"{id_file} cannot be read: {one_line(error)}; remove it to begin a new run there") from error
    try:
        run = wandb.init(
            project=project,
            dir=str(output),
            name=output.name,
            id=run_id,
            resume="allow",
            config=clean(training, strip_query=True),
        )
    except wandb.Error as error:
        raise UserError(
            f"log.wandb_project={project}: {error}; log in with `wandb login`, or set WANDB_MODE=offline"
        ) from None

    return Sink(lambda step, values: run.log(values, step=step), run.finish)


logger = logging.getLogger(__name__)

GEOMETRY: Final = ("logit_scale", "curvature", "alpha")
"""Endings of the names of terms that describe the space of the model, not a loss."""


def named_values(losses: Losses) -> dict[str, Tensor]:
    """The 0-d tensors to log, by name. A term with one number per factor gives its mean, minimum and maximum."""
    values = {"loss/total": losses.loss.detach()}
    for name, term in losses.terms.items():
        full_name = f"{'geometry' if name.endswith(GEOMETRY) else 'loss'}/{name}"
        if term.numel() == 1:
            values[full_name] = term.reshape(())
        else:
            values |= {full_name: term.mean(), f"{full_name}/min": term.min(), f"{full_name}/max": term.max()}
    return values


class Meter:
    """Samples per second, the share of time spent waiting for data, and the seconds of pauses, since `restart`."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start a new measurement."""
        self.start_time, self.seconds_waited, self.samples = time.perf_counter(), 0.0, 0
        self.seconds_paused = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as waiting for data."""
        start = time.perf_counter()
        yield
        self.seconds_waited += time.perf_counter() - start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside from the elapsed time. Used for evaluation and checkpoints."""
        start = time.perf_counter()
        yield
        self.start_time += time.perf_counter() - start
        self.seconds_paused += time.perf_counter() - start

    def read(self) -> dict[str, float]:
        """The values, by the names under which they are logged."""
        elapsed = max(time.perf_counter() - self.start_time, 1e-9)
        speed = {"samples_per_s": self.samples / elapsed, "data_wait_share": self.seconds_waited / elapsed}
        return speed | {"paused_s": self.seconds_paused}


def truncate(path: Path, step: int, required_field: str = "") -> None:
    """Remove the rows after `step`, the step of the checkpoint from which a run resumes; the run writes them again.

    Rows of `step` itself are kept; if `required_field` is given, only those that have it. Does nothing if the file does not
    exist. Raises UserError for what is no row, unless it is an incomplete last line, which is removed too, and OSError if
    the file cannot be written.
    """
    if not path.exists():
        return
    kept = []
    try:
        for number, line in enumerate(BytesIO(read_limited(path, MAX_BYTES)), 1):
            try:
                row = parse_row(line, number)
            except ValueError:
                if line.endswith(b"\n"):
                    raise
                break  # the process was killed while it wrote the last line
            if row["step"] > step or (row["step"] == step and required_field and required_field not in row):
                break
            kept.append(line.rstrip() + b"\n")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be continued: {one_line(error)}; move it away, and the run begins a new one"
        ) from error
    with atomic_write(path) as draft:
        draft.write_bytes(b"".join(kept))


class Metrics:
    """The metrics writers of a run, used by its main process only.

    `training` is the configuration of the run as plain values, which Weights & Biases displays. `step` is the step from
    which the run starts or resumes: later rows of metrics.jsonl are removed, since the run writes them again. `steps`
    is the last step.

    Raises UserError if the package of a writer is missing, if a file of the run cannot be read or written, or if Weights &
    Biases refuses the run.
    """

    def __init__(self, output: Path, config: LogConfig, training: dict[str, Any], *, step: int, steps: int) -> None:
        self.path = output / "metrics.jsonl"
        self.sinks: list[Sink] = []
        with self.explained():
            # A finished run that is started again repeats its final evaluation, so the evaluation row of the last step is
            # removed too.
            truncate(self.path, step, required_field="loss/total" if step == steps else "")
            self.file = self.path.open("a", encoding="utf-8")
            if config.tensorboard:
                self.sinks.append(tensorboard_sink(output, step))
        if config.wandb_project is not None:
            self.sinks.append(wandb_sink(output, config.wandb_project, training))

    def write(self, step: int, values: dict[str, float]) -> None:
        """Append a row and flush it, so that a killed run keeps it. Raises UserError if it cannot be written.

        Values that are not finite are omitted, because JSON cannot represent them. They occur when gradients overflow
        in fp16; `fp16/skipped` marks these steps.
        """
        values = {name: value for name, value in values.items() if math.isfinite(value)}
        with self.explained():
            self.file.write(json.dumps({"step": step, **values}) + "\n")
            self.file.flush()
            for sink in self.sinks:
                sink.write(step, values)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise UserError for an error of the file system."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self.path} or its folder cannot be written: {error}; free disk space, then repeat the command to "
                "resume"
            ) from None

    def close(self) -> None:
        """Close all writers. Errors are ignored: they would replace the error of `write` that ended the run."""
        for close in (self.file.close, *(sink.close for sink in self.sinks)):
            with suppress(OSError):
                close()


# Progress of a run: a bar on a terminal, else a log line after the first step and every ten seconds.

SECONDS_BETWEEN_LINES: Final = 10.0


class Progress(AbstractContextManager["Progress"]):
    """Display of the step, samples/s, share of time spent waiting for data, loss and remaining time.

    `step` is the step from which the run starts or resumes, `steps` the last one. Nothing is displayed unless `shown`.
    """

    def __init__(self, step: int, steps: int, shown: bool) -> None:
        self.step, self.steps, self.shown = step, steps, shown
        self.first_step, self.start_time, self.last_line_time = step, time.monotonic(), time.monotonic()
        self.values: dict[str, float] = {}
        self.on_terminal = sys.stderr.isatty()
        self.bar = tqdm(
            total=steps, initial=step, unit=" steps", disable=not (shown and self.on_terminal), dynamic_ncols=True
        )

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def advance(self, step: int, values: dict[str, float]) -> None:
        """Display `step` and its `values`. Missing values, such as the speed, are shown as last measured."""
        self.values |= values
        self.bar.update(step - self.step)
        self.step = step
        now = time.monotonic()
        text = f"loss {self.values.get('loss/total', float('nan')):.4f}"
        if "samples_per_s" in self.values:
            speed, share = self.values["samples_per_s"], self.values["data_wait_share"]
            text += f", {speed:.1f} samples/s, {share:.0%} waiting for data"
        self.bar.set_postfix_str(text, refresh=False)
        is_due = now - self.last_line_time >= SECONDS_BETWEEN_LINES or step in (self.first_step + 1, self.steps)
        if self.shown and not self.on_terminal and is_due:
            seconds_left = (now - self.start_time) / (step - self.first_step) * (self.steps - step)
            logger.info("step %d of %d, %s, %s left", step, self.steps, text, duration_text(seconds_left))
            self.last_line_time = now
