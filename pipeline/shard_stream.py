"""Open finished shards for a training loop of one's own: a webdataset pipeline of decoded samples."""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from hypergrit_common.images import ImageRejected
from hypergrit_common.layouts import find_layout, read_sample
from hypergrit_common.locations import Locations
from hypergrit_common.sample_stream import SampleStream, Streamed
from hypergrit_common.samples import BadSample, Box, EncodedImage, Region, Word, open_image
from schemas.training import Layout, Need

OPTIONAL = frozenset({"boxes", "parse", "captions", "hard_negatives"})


def open_shards(
    urls: Locations,
    *,
    needs: Collection[Need] = (),
    shuffle: int = 1000,
    seed: int = 0,
    samples: int | None = None,
    repeat: bool = False,
    max_bad_share: float = 0.1,
) -> SampleStream:
    """Open tars as a webdataset pipeline of decoded samples, divided among ranks and loader processes.

    The tars are those of `train/` or `grit/`, of HyCoCLIP, of GRIT or of pairs. A sample has `key`, `shard`, `image` (uint8
    [3 h w]), `caption`, `boxes` (with `phrase`, `crop`, uint8 [3 h w], and `hard_negatives`), `captions` (kind and text),
    `levels`, and `tree`, the parse of the caption: `start`, `end` and `head` (int64 [words]) and `dep`; None without one.

    Args:
        urls: a folder, glob, URL or list of tars; `pipe:COMMAND` reads what a command writes, and runs it in a shell.
        needs: "boxes", "parse" or "levels"; samples without them are left out as bad.
        shuffle: samples that each loader process shuffles, before they are decoded; 0: the order of the shards.
        seed: seed of the order; `set_epoch` of the result gives each epoch another one.
        samples: samples of each rank in an epoch, so that all ranks have equally many; None: each sample once.
        repeat: begin again at the end, without end.
        max_bad_share: largest share of bad samples, and of damaged shards, 0 to 1.

    Returns:
        The pipeline, with webdataset's methods such as `map` and `batched`, for torch's DataLoader with batch_size=None.

    Raises:
        UserError: there are no shards, or later, too many are bad.
    """
    return SampleStream(
        urls,
        Decode(frozenset(needs)),
        shuffle=shuffle,
        seed=seed,
        samples=samples,
        repeat=repeat,
        max_bad_share=max_bad_share,
    )


class Decode:
    """Decodes samples, in the layout of the first one that has one."""

    def __init__(self, needs: frozenset[str]) -> None:
        self.needs = needs
        self.layout: Layout | None = None

    def __call__(self, streamed: Streamed) -> dict[str, Any]:
        layout = self.layout = self.layout or find_layout(streamed.data)
        sample = read_sample(streamed.data, layout, self.needs, OPTIONAL)
        try:
            return {
                "key": sample.key,
                "shard": streamed.shard,
                "image": pixels(sample.image),
                "caption": sample.caption,
                "boxes": [box_of(box, sample.image) for box in sample.boxes],
                "captions": [{"kind": caption.kind, "text": caption.text} for caption in sample.captions],
                "levels": list(sample.levels),
                "tree": tree_of(sample.words),
            }
        except ImageRejected as error:
            raise BadSample("undecodable_image", str(error)) from error


def pixels(image: EncodedImage, region: Region | None = None) -> Tensor:
    """Decode an image, or a region of it, to uint8 [3 h w]. Raises ImageRejected."""
    x, y, width, height = region or image.full_region
    return torch.from_numpy(image.decode(1)[y : y + height, x : x + width].copy()).permute(2, 0, 1)


def box_of(box: Box, image: EncodedImage) -> dict[str, Any]:
    """Return a box as tensors. Raises BadSample and ImageRejected."""
    crop = pixels(image, box.region) if box.image is None else pixels(open_image(box.image))
    return {"phrase": box.phrase, "crop": crop, "hard_negatives": list(box.hard_negatives)}


def tree_of(words: tuple[Word, ...] | None) -> dict[str, Any] | None:
    """Return a parse as tensors, one entry per word."""
    if words is None:
        return None
    tree: dict[str, Any] = {
        name: torch.tensor([getattr(word, name) for word in words]) for name in ("start", "end", "head")
    }
    return tree | {"dep": [word.dep for word in words]}
