"""The root of CLIP: the centroid of the training samples (MERU, section 5; HyCoCLIP, figure 12).

`python -m trainer.analyses.root MODEL shards=SHARDS output=FILE.npy` embeds the whole images and the captions of the
shards and writes the mean of their unit vectors, which the option `root=FILE.npy` of `hypergrit evaluate` takes. Images
are squeezed to a square; the papers do not print whether theirs are cropped.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hypergrit_common.cli import command
from hypergrit_common.devices import pick_device
from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError
from trainer.analyses.command import ShardsConfig, run
from trainer.checkpoints.model import LoadedModel
from trainer.evaluation.embed import embed_images, embed_texts
from trainer.evaluation.held_out.shards import HeldOutShards


def centroid(found: LoadedModel, shards: HeldOutShards, config: ShardsConfig) -> tuple[Tensor, int]:
    """The mean [d] of the unit vectors of images and captions, and the number of samples. Raises UserError without any."""
    model, size_px = found.model.to(pick_device(config.device)).eval(), found.model.config.image.size_px
    total, n_samples = torch.zeros(model.config.embed_dim, dtype=torch.float64), 0
    n_read = min(shards.index.n_samples, config.max_samples or shards.index.n_samples)
    for start in range(0, n_read, config.batch_size):
        part = shards.read_part(range(start, min(start + config.batch_size, n_read)), size_px)
        if part.captions:
            images = embed_images(model, part.images, config.batch_size)
            for features in (images, embed_texts(model, found.tokenizer, part.captions, config.batch_size)):
                total += F.normalize(features.double(), dim=-1).sum(0).cpu()
            n_samples += len(part.captions)
    if not n_samples:
        raise UserError(f"shards={config.shards}: no sample can be read; create the shards again")
    return total / (2 * n_samples), n_samples


def write_root(_: str, found: LoadedModel, config: ShardsConfig) -> str:
    """Write the root, and return what it is."""
    root, n_samples = centroid(found, HeldOutShards(config.shards), config)
    with atomic_write(Path(config.output)) as draft, draft.open("wb") as file:
        np.save(file, root.float().numpy())
    return f"the mean of {n_samples} images and their captions"


@command()
def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return run(arguments, str(__doc__), ShardsConfig, write_root)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
