"""Destinations of metrics and pictures beside metrics.jsonl: TensorBoard and Weights & Biases."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Pictures and distributions of one step, by name."""

    images: dict[str, NDArray[np.uint8]] = field(default_factory=dict)  # RGB [h w 3]
    histograms: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # values [n], finite and not empty


class Sink(NamedTuple):
    """A destination of metrics. Its functions take the step, and values or pictures by name."""

    write: Callable[[int, dict[str, float]], None]
    draw: Callable[[int, Pictures], None]
    close: Callable[[], None]


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

    def draw(step: int, pictures: Pictures) -> None:
        for name, image in pictures.images.items():
            writer.add_image(name, image, step, dataformats="HWC")
        for name, values in pictures.histograms.items():
            writer.add_histogram(name, values, step)

    return Sink(write, draw, writer.close)


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

    def draw(step: int, pictures: Pictures) -> None:
        images = {name: wandb.Image(image) for name, image in pictures.images.items()}
        histograms = {name: wandb.Histogram(values.tolist()) for name, values in pictures.histograms.items()}
        run.log({**images, **histograms}, step=step)

    return Sink(lambda step, values: run.log(values, step=step), draw, run.finish)
