"""Image folders in torchvision's layout, FOLDER/CLASS/IMAGE: a class is a folder, classes are in the order of their names."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
from torch import Tensor

from common.errors import UserError
from common.images import ImageRejected, decode
from trainer.data.crops import LIMITS
from trainer.data.preprocess import PreprocessConfig, fit

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    """Names of classes, and the images with the class of each."""

    name: str
    classes: list[str]
    paths: list[Path]
    targets: list[int]


def read_folders(folders: Sequence[str], limit: int = 0) -> list[ImageFolder]:
    """Each called by the last part of its path, or by as many as tell it from the others: imagenet/val, cars/val."""
    paths = [Path(folder).resolve() for folder in folders]
    parts = next(n for n in count(1) if len({path.parts[-n:] for path in paths}) == len(set(paths)))
    return [
        replace(read_folder(folder, limit), name="/".join(path.parts[-parts:]))
        for folder, path in zip(folders, paths, strict=True)
    ]


def read_folder(folder: str, limit: int = 0) -> ImageFolder:
    """The classes and images of `folder`, at most `limit` of them (0: all), evenly from all classes.

    Raises UserError if there are none.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"image_folders: {folder} is no folder; give one with a folder of images a class")
    names = sorted(path.name for path in root.iterdir() if path.is_dir())
    found = [
        (path, target)
        for target, name in enumerate(names)
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if not found:
        raise UserError(f"image_folders: {folder} holds no CLASS/IMAGE with one of {', '.join(SUFFIXES)}")
    if 0 < limit < len(found):
        found = [found[i] for i in np.linspace(0, len(found) - 1, limit).round().astype(int)]
    return ImageFolder(
        name=root.resolve().name,
        classes=[name.replace("_", " ") for name in names],
        paths=[path for path, _ in found],
        targets=[target for _, target in found],
    )


def read_images(paths: list[Path], size_px: int) -> Iterator[Tensor]:
    """Bytes [3 s s] of each image, its short side resized and its centre cut out, as the papers evaluate."""
    preprocess = PreprocessConfig(size_px=size_px, mode="crop")
    for path in paths:
        try:
            pixels = decode(path.read_bytes(), LIMITS)
        except (OSError, ImageRejected) as error:
            raise UserError(
                f"image_folders: {path} cannot be read as an image: {error}; replace it or take it out"
            ) from error
        yield fit(pixels, preprocess)
