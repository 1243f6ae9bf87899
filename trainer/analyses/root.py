"""The root of CLIP: the centroid of the training samples (MERU, section 5; HyCoCLIP, figure 12).

`python -m trainer.analyses.root MODEL shards=SHARDS output=FILE.npy` embeds the whole images and the captions of the
shards and writes the mean of their unit vectors, which the option `root=FILE.npy` of `hypergrit evaluate` takes. Images
are squeezed to a square; the papers do not print whether theirs are cropped.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hypergrit_common.cli import EXIT_CODES, command, set_up_logging
from hypergrit_common.config import Keys, check_range, merge, read_layers
from hypergrit_common.config_help import describe, print_text
from hypergrit_common.devices import check_device, pick_device
from hypergrit_common.errors import UserError
from trainer.checkpoints.model import LoadedModel, load_model
from trainer.evaluation.embed import embed_images, embed_texts
from trainer.evaluation.held_out.shards import HeldOutShards


@dataclass(frozen=True, kw_only=True)
class ShardsConfig:
    """Settings of a command that embeds shards."""

    # shards in a layout of training shards: a folder, a glob, or several separated by commas
    shards: str = ""
    # file for the result
    output: str = ""
    # maximum number of samples; 0: all
    max_samples: int = 0
    # number of samples that are in memory at once
    batch_size: int = 256
    # name of the model in a released .pth file
    model_name: str | None = None
    # device: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = "auto"

    def __post_init__(self) -> None:
        if not (self.shards and self.output):
            raise UserError("shards or output is missing; give shards=FOLDER output=FILE")
        check_range(self, "max_samples", least=0)
        check_range(self, "batch_size", least=1)
        check_device(self)


C = TypeVar("C", bound=ShardsConfig)


def centroid(found: LoadedModel, shards: HeldOutShards, config: ShardsConfig) -> tuple[Tensor, int]:
    """The mean [d] of the unit vectors of images and captions, and the number of samples. Raises UserError without any."""
    model, size_px = found.model.to(pick_device(config.device)).eval(), found.model.config.image.size_px
    total, n_samples = torch.zeros(model.config.embed_dim, dtype=torch.float64), 0
    n_read = min(shards.index.n_samples, config.max_samples or shards.index.n_samples)
    for start in range(0, n_read, config.batch_size):
        part = shards.read_part(range(start, min(start + config.batch_size, n_read)), size_px)
        if part.images:
            images = embed_images(model, part.images, config.batch_size)
            for features in (images, embed_texts(model, found.tokenizer, part.captions, config.batch_size)):
                total += F.normalize(features.double(), dim=-1).sum(0).cpu()
            n_samples += len(part.images)
    if not n_samples:
        raise UserError(f"shards={config.shards}: no sample can be read; create the shards again")
    return total / (2 * n_samples), n_samples


def run(arguments: Sequence[str], usage: str, kind: type[C], work: Callable[[str, LoadedModel, C], str]) -> int:
    """Run a command MODEL key=value ... on shards, print what `work` returns, and return the exit code."""
    if len(arguments) < 2 or "-h" in arguments or "--help" in arguments:
        print_text(f"{usage}\n{describe('', kind, {}).strip()}\n\n{EXIT_CODES}")
        return 0 if {"-h", "--help"} & {*arguments} else 2
    set_up_logging()
    path, *others = arguments
    config = merge(kind, read_layers(others, Keys()))
    try:
        print_text(f"{config.output}: {work(path, load_model(path, config.model_name), config)}")
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    return 0


def write_root(_: str, found: LoadedModel, config: ShardsConfig) -> str:
    """Write the root, and return what it is."""
    root, n_samples = centroid(found, HeldOutShards(config.shards), config)
    with Path(config.output).open("wb") as file:
        np.save(file, root.float().numpy())
    return f"the mean of {n_samples} images and their captions"


@command()
def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return run(arguments, str(__doc__), ShardsConfig, write_root)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
