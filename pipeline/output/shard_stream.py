"""Open finished shards for a training loop of one's own: a webdataset pipeline of decoded samples."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from hypergrit_common.images import ImageRejected
from hypergrit_common.layouts import read_sample
from hypergrit_common.locations import Locations
from hypergrit_common.sample_stream import SampleStream, shard_name
from hypergrit_common.samples import BadSample, Box, EncodedImage, Region, Word, is_logged, open_image, too_many_bad
from schemas.training import Need

logger = logging.getLogger(__name__)

OPTIONAL: Final = frozenset({"boxes", "parse", "captions", "hard_negatives"})


def open_shards(
    urls: Locations, *, needs: Collection[Need] = (), shuffle: int = 1000, seed: int = 0, max_bad_share: float = 0.1
) -> SampleStream:
    """Open tars as a webdataset pipeline of decoded samples, divided among ranks and loader processes.

    The tars are those of `train/` or `grit/`, of HyCoCLIP, of GRIT or of pairs. A sample has `key`, `shard`, `image` (uint8
    [3 h w]), `caption`, `boxes` (with `phrase`, `crop`, uint8 [3 h w], and `hard_negatives`), `captions` (kind and text),
    `levels`, and `tree`, the parse of the caption: `start`, `end` and `head` (int64 [words]) and `dep`; None without one.

    Args:
        urls: a folder, glob, URL or list of tars; `pipe:COMMAND` reads what a command writes, and runs it in a shell.
        needs: "boxes", "parse" or "levels"; samples without them are left out as bad.
        shuffle: samples that each loader process shuffles, before they are decoded; 0: the order of the shards.
        seed: seed of the order, beside torch's, from which each epoch of a DataLoader has another one.
        max_bad_share: largest share of bad samples, and of damaged shards, of a process, 0 to 1.

    Returns:
        The pipeline, with webdataset's methods such as `map`, `repeat` and `with_epoch`, for a DataLoader with batch_size=None.

    Raises:
        UserError: there are no shards; or later, fewer than loader processes, or too many are bad.

    >>> import tempfile, webdataset
    >>> from PIL import Image
    >>> from pipeline import open_shards
    >>> name = f"{tempfile.mkdtemp()}/0.tar"
    >>> with webdataset.TarWriter(name) as tar:
    ...     _ = tar.write({"__key__": "0", "jpg": Image.new("RGB", (32, 24)), "txt": "a dog"})
    >>> sample = next(iter(open_shards(name)))
    >>> sample["caption"], tuple(sample["image"].shape), sample["boxes"]
    ('a dog', (3, 24, 32), [])
    """
    stream = SampleStream(urls, shuffle=shuffle, seed=seed, max_bad_share=max_bad_share)
    stream.append(Decode(frozenset(needs), max_bad_share))
    return stream


class Decode:
    """Decodes samples, each in its layout. Bad ones are left out, logged and counted."""

    def __init__(self, needs: frozenset[str], max_bad_share: float) -> None:
        self.needs, self.max_bad_share = needs, max_bad_share
        self.counts: Counter[str] = Counter()

    def __call__(self, samples: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        for sample in samples:
            self.counts["samples"] += 1
            try:
                decoded = self.decode(sample)
            except BadSample as bad:
                self.counts[f"bad/{bad.reason}"] += 1
                n_bad = self.counts.total() - self.counts["samples"]
                if is_logged(n_bad):
                    name = shard_name(sample["__url__"])
                    logger.warning("bad sample %d, left out: %s: %s: %s", n_bad, name, sample["__key__"], bad)
                limit = f"max_bad_share={self.max_bad_share}"
                if problem := too_many_bad(self.counts, self.counts["samples"], limit)[0]:
                    raise UserError(f"{problem}; fix or remove the shards that the log names") from bad
                continue
            yield decoded

    def decode(self, files: Mapping[str, Any]) -> dict[str, Any]:
        """Return a sample as tensors. Raises BadSample."""
        sample = read_sample(files, "auto", self.needs, OPTIONAL)
        try:
            return {
                "key": sample.key,
                "shard": shard_name(files["__url__"]),
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
