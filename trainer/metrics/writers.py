"""Writers of a run's metrics: metrics.jsonl, and the same numbers for TensorBoard and Weights & Biases, with pictures.

A row of metrics.jsonl holds `step`, then values by name, such as loss/total, loss/contrastive, geometry/curvature, lr,
grad_norm. Rows with evaluation results hold names such as zero_shot/FOLDER/accuracy. `samples_per_s` and
`data_wait_share` depend on the machine; all others are equal in two runs with the same seed on the same kind of CPU.
"""

import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from common.errors import UserError
from common.jsonl import truncate
from trainer.batch import Losses
from trainer.metrics.config import LogConfig
from trainer.metrics.sinks import Pictures, Sink, tensorboard_sink, wandb_sink

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


class Metrics:
    """The metrics writers of a run, used by its main process only.

    `training` is the configuration of the run as plain values, which Weights & Biases displays. `step` is the step from
    which the run starts or resumes: later rows of metrics.jsonl are removed, since the run writes them again. `steps`
    is the last step. `n_pictured` is the number of pairs in a picture, 0 if no pictures are written.

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
        self.n_pictured = config.images if self.sinks and can_draw(config) else 0

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

    def draw(self, step: int, pictures: Pictures) -> None:
        """Write pictures and distributions for TensorBoard and W&B. Raises UserError if they cannot be written."""
        with self.explained():
            for sink in self.sinks:
                sink.draw(step, pictures)

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


def can_draw(config: LogConfig) -> bool:
    """True if pictures are wanted and matplotlib is installed; a warning names the fix if it is not."""
    if config.images and find_spec("matplotlib") is None:
        logger.warning(
            "log.images=%d needs the package matplotlib, so no pictures are written; pip install matplotlib, or set "
            "log.images=0",
            config.images,
        )
        return False
    return config.images > 0
