"""What a run writes down: rows of metrics.jsonl, and the same numbers for TensorBoard and Weights & Biases.

A row holds `step` and then names such as loss/total, loss/contrastive, geometry/curvature, lr, grad_norm. `samples_per_s` and
`data_wait_share` depend on the machine; the others are the same in every run of the same seed on the same kind of CPU.
"""

import json
import math
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from common.errors import UserError
from common.jsonl import truncate
from trainer.batch import Losses
from trainer.config import TrainConfig, as_dict
from trainer.metrics.config import LogConfig

GEOMETRY = ("logit_scale", "curvature", "alpha")
"""Terms whose name ends so describe the space; the others are losses."""


def named_values(losses: Losses) -> dict[str, Tensor]:
    """0-d tensors by the name they are logged with; of a vector, one number a factor, its mean and ends."""
    values = {"loss/total": losses.loss.detach()}
    for name, term in losses.terms.items():
        full = f"{'geometry' if name.endswith(GEOMETRY) else 'loss'}/{name}"
        if term.numel() == 1:
            values[full] = term.reshape(())
        else:
            values |= {full: term.mean(), f"{full}/min": term.min(), f"{full}/max": term.max()}
    return values


class Meter:
    """Samples a second and the share of time spent waiting for data, since the last row."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.began, self.waited, self.samples = time.perf_counter(), 0.0, 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.waited += time.perf_counter() - start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time that is not training: evaluation, checkpoints."""
        start = time.perf_counter()
        yield
        self.began += time.perf_counter() - start

    def read(self) -> dict[str, float]:
        elapsed = max(time.perf_counter() - self.began, 1e-9)
        return {"samples_per_s": self.samples / elapsed, "data_wait_share": self.waited / elapsed}


class Metrics:
    """The writers of one run, open from its first step to its last. Only the first rank has one."""

    def __init__(self, output: Path, config: TrainConfig, step: int) -> None:
        self.path = output / "metrics.jsonl"
        # The evaluation of a finished run comes after its last checkpoint, and comes again.
        truncate(self.path, step, last="loss/total" if step == config.optim.steps else "")
        self.file = self.path.open("a", encoding="utf-8")
        self.others = [sink for sink in (tensorboard(output, config.log, step), wandb(output, config)) if sink]

    def write(self, step: int, values: dict[str, float]) -> None:
        """One row. Written through, so that a killed run keeps it.

        JSON has no word for a gradient that overflowed in fp16; `fp16/skipped` says of it.
        """
        values = {name: value for name, value in values.items() if math.isfinite(value)}
        try:
            self.file.write(json.dumps({"step": step, **values}) + "\n")
            self.file.flush()
            for write, _ in self.others:
                write(step, values)
        except OSError as error:
            raise UserError(
                f"{self.path} or what is beside it cannot be written: {error}; make room, then the same command goes on"
            ) from None

    def close(self) -> None:
        """What a full disk has to say was said by `write`, and is not to be said again in its place."""
        for close in (self.file.close, *(close for _, close in self.others)):
            with suppress(OSError):
                close()


Sink = tuple[Callable[[int, dict[str, float]], None], Callable[[], None]]
"""What takes a row, and what closes it."""


def tensorboard(output: Path, config: LogConfig, step: int) -> Sink | None:
    if not config.tensorboard:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            f"log.tensorboard=true needs the package tensorboard ({error}): pip install tensorboard, or log.tensorboard=false"
        ) from None
    writer: Any = SummaryWriter(str(output / "tensorboard"), purge_step=step + 1)

    def write(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return write, writer.close


def wandb(output: Path, config: TrainConfig) -> Sink | None:
    project = config.log.wandb_project
    if project is None:
        return None
    try:
        import wandb as service
    except ImportError as error:
        raise UserError(
            f"log.wandb_project={project} needs the package wandb ({error}): pip install wandb, or leave it out"
        ) from None
    identity = output / "wandb_id"
    if not identity.is_file():
        identity.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    try:
        run = service.init(
            project=project,
            dir=str(output),
            name=output.name,
            id=identity.read_text(encoding="utf-8"),
            resume="allow",
            config=as_dict(config),
        )
    except service.Error as error:
        raise UserError(
            f"log.wandb_project={project}: {error}; log in with `wandb login`, or set WANDB_MODE=offline"
        ) from None
    return (lambda step, values: run.log(values, step=step)), run.finish
