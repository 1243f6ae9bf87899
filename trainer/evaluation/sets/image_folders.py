"""Image folders in torchvision's layout, FOLDER/CLASS/IMAGE. Classes are in the order of their names."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from hypergrit_common.images import ImageRejected, decode
from trainer.data.crops import LIMITS
from trainer.data.preprocess import PreprocessConfig, fit

SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    """The classes of an image folder, and the path and class index of each image."""

    name: str
    classes: list[str]
    paths: list[Path]
    targets: list[int]


def read_folders(folders: Sequence[str]) -> list[ImageFolder]:
    """List image folders.

    A folder's name is the last part of its path, or as many last parts as make the names differ: imagenet/val,
    cars/val. Raises UserError for a folder without images.
    """
    paths = [Path(folder).resolve() for folder in folders]
    n_parts = next(n for n in count(1) if len({path.parts[-n:] for path in paths}) == len(set(paths)))
    return [
        replace(read_folder(folder), name="/".join(path.parts[-n_parts:]))
        for folder, path in zip(folders, paths, strict=True)
    ]


def read_folder(folder: str) -> ImageFolder:
    """List the classes and images of one folder. Raises UserError if there are no images."""
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"image_folders: {folder} is not a folder; give one with a subfolder of images for each class")
    names = class_names(root)
    found = class_images(root, names)
    if not found:
        raise UserError(
            f"image_folders: {folder} holds no images CLASS/IMAGE that end in {', '.join(SUFFIXES)}; give a folder "
            "with a subfolder of images for each class"
        )
    return ImageFolder(
        name=root.resolve().name,
        classes=[name.replace("_", " ") for name in names],
        paths=[path for path, _ in found],
        targets=[target for _, target in found],
    )


def class_names(folder: Path) -> list[str]:
    """The names of the folders of classes, sorted; hidden folders are none."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def class_images(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """The images below FOLDER/CLASS in the order of their paths, each with the number of its class."""
    return [
        (path, target)
        for target, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]


def read_images(paths: Sequence[Path], size_px: int) -> Tensor:
    """Read images as uint8 [n 3 s s]: resize the short side to `size_px`, then crop the centre, as the papers do.

    Raises UserError for a file that is not a usable image.
    """
    preprocess = PreprocessConfig(size_px=size_px, mode="crop")
    images = []
    for path in paths:
        try:
            check_file(path)
            pixels = decode(path.read_bytes(), LIMITS)
        except (OSError, ImageRejected) as error:
            raise UserError(
                f"image_folders: {path} cannot be read as an image: {error}; replace or remove it"
            ) from error
        images.append(fit(pixels, preprocess))
    return torch.stack(images)
