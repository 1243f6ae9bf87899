"""Held-out shards of train/, once through, nothing at random: wholes, captions, and every box with its phrase."""

import io
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import PIL.Image
from torch import Tensor

from settings.errors import UserError
from trainer.preprocess import PreprocessConfig, fit


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """n wholes and m boxes; images are bytes [3 s s]."""

    images: list[Tensor] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    box_images: list[Tensor] = field(default_factory=list)
    box_texts: list[str] = field(default_factory=list)
    box_owner: list[int] = field(default_factory=list)  # the whole of each box


def read_held_out(shards: str, size_px: int, limit: int) -> HeldOut:
    """The first `limit` samples (0: all), images squeezed to a square as the papers' retrieval does."""
    held_out = HeldOut()
    how = PreprocessConfig(size_px=size_px, mode="squash")

    def picture(data: bytes) -> Tensor:
        return fit(np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB")), how)

    paths = sorted(Path(shards).glob("*.tar"))
    if not paths:
        raise UserError(shards)
    for path in paths:
        samples: dict[str, dict[str, bytes]] = {}
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, name = member.name.partition(".")
                file = tar.extractfile(member)
                assert file
                samples.setdefault(key, {})[name] = file.read()
        for sample in samples.values():
            if limit and len(held_out.images) >= limit:
                return held_out
            for i in range(int(sample["numparents.txt"])):
                held_out.box_images.append(picture(sample[f"parent{i:03d}.jpg"]))
                held_out.box_texts.append(sample[f"parent{i:03d}.txt"].decode())
                held_out.box_owner.append(len(held_out.images))
            held_out.images.append(picture(sample["child.jpg"]))
            held_out.captions.append(sample["child.txt"].decode())
    return held_out
