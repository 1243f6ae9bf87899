"""Writers of a run's metrics: metrics.jsonl, and the same numbers for TensorBoard and Weights & Biases.

A row of metrics.jsonl holds `step`, then values by name, such as loss/total, loss/contrastive, geometry/curvature, lr,
grad_norm. Rows with evaluation results hold names such as zero_shot/FOLDER/accuracy. `samples_per_s` and
`data_wait_share` depend on the machine; all others are equal in two runs with the same seed on the same kind of CPU.
"""

import json
import math
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from torch import Tensor

from common.errors import UserError
from common.jsonl import truncate
from trainer.batch import Losses
from trainer.metrics.config import LogConfig

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
    """Samples per second and the share of time spent waiting for data, since the last `restart`."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start a new measurement."""
        self.start_time, self.seconds_waited, self.samples = time.perf_counter(), 0.0, 0

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

    def read(self) -> dict[str, float]:
        """The two values, by the names under which they are logged."""
        elapsed = max(time.perf_counter() - self.start_time, 1e-9)
        return {"samples_per_s": self.samples / elapsed, "data_wait_share": self.seconds_waited / elapsed}


class Sink(NamedTuple):
    """A destination of metrics beside metrics.jsonl."""

    write: Callable[[int, dict[str, float]], None]  # step, values by name
    close: Callable[[], None]


class Metrics:
    """The metrics writers of a run, used by its main process only.

    `training` is the configuration of the run as plain values, which Weights & Biases displays. `step` is the step from
    which the run starts or resumes: later rows of metrics.jsonl are removed, since the run writes them again. `steps`
    is the last step.

    Raises UserError if the package of a writer is missing, or if Weights & Biases refuses the run.
    """

    def __init__(self, output: Path, config: LogConfig, training: dict[str, Any], *, step: int, steps: int) -> None:
        self.path = output / "metrics.jsonl"
        # A finished run that is started again repeats its final evaluation, so the evaluation row of the last step is
        # removed too.
        truncate(self.path, step, required_field="loss/total" if step == steps else "")
        self.file = self.path.open("a", encoding="utf-8")
        self.sinks: list[Sink] = []
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
        try:
            self.file.write(json.dumps({"step": step, **values}) + "\n")
            self.file.flush()
            for sink in self.sinks:
                sink.write(step, values)
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


def tensorboard_sink(output: Path, step: int) -> Sink:
    """Return a sink that writes event files to OUTPUT/tensorboard, and remove the events after `step`.

    Raises UserError if tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            f"log.tensorboard=true needs the package tensorboard ({error}); pip install tensorboard, or set "
            "log.tensorboard=false"
        ) from None
    writer: Any = SummaryWriter(str(output / "tensorboard"), purge_step=step + 1)

    def write(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return Sink(write, writer.close)


def wandb_sink(output: Path, project: str, training: dict[str, Any]) -> Sink:
    """Return a sink that writes to Weights & Biases. On resume it continues the run with the id in OUTPUT/wandb_id.

    Raises UserError if wandb is not installed or refuses the run.
    """
    try:
        import wandb
    except ImportError as error:
        raise UserError(
            f"log.wandb_project={project} needs the package wandb ({error}); pip install wandb, or remove this setting"
        ) from None
    id_file = output / "wandb_id"
    if not id_file.is_file():
        id_file.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    try:
        run = wandb.init(
            project=project,
            dir=str(output),
            name=output.name,
            id=id_file.read_text(encoding="utf-8"),
            resume="allow",
            config=training,
        )
    except wandb.Error as error:
        raise UserError(
            f"log.wandb_project={project}: {error}; log in with `wandb login`, or set WANDB_MODE=offline"
        ) from None
    return Sink(lambda step, values: run.log(values, step=step), run.finish)
