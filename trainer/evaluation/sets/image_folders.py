"""Image folders in torchvision's layout, FOLDER/CLASS/IMAGE. Classes are in the order of their names, as `in_order`."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from hypergrit_common.files import read_limited
from hypergrit_common.images import IMAGE_SUFFIXES, ImageRejected, decode
from hypergrit_common.samples import LIMITS, MAX_SAMPLE_BYTES
from hypergrit_common.text import shortened
from trainer.data.preprocess import PreprocessConfig, fit
from trainer.evaluation.catalog import set_infos

logger = logging.getLogger(__name__)

SUFFIXES: Final = tuple(f".{name}" for name in IMAGE_SUFFIXES)


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
        classes=[*map(readable, names)],
        paths=[path for path, _ in found],
        targets=[target for _, target in found],
    )


def class_names(folder: Path) -> list[str]:
    """The names of the folders of classes, as `in_order`; hidden folders are none."""
    return in_order(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def in_order(names: Iterable[str]) -> list[str]:
    """The names sorted; by value if all are whole numbers.

    >>> in_order(["10", "9"]), in_order(["10", "9", "no 1"])
    (['9', '10'], ['10', '9', 'no 1'])
    """
    names = sorted(names)
    return sorted(names, key=lambda name: name.zfill(MAX_NAME)) if all(map(str.isdecimal, names)) else names


MAX_NAME: Final = 255
"""Characters of the name of a folder."""


def class_images(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """The images below FOLDER/CLASS in the order of their paths, each with the number of its class; hidden files are none.

    Logs what a user may have meant otherwise: classes without images, with images in folders of their own, with equal
    texts, and files that are no images.
    """
    files = [
        (path, n)
        for n, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    found = [(path, n) for path, n in files if path.suffix.lower() in SUFFIXES]
    others = [path for path, _ in files if path.suffix.lower() not in SUFFIXES]
    empty = [classes[n] for n in sorted(set(range(len(classes))) - {n for _, n in found})]
    deep = [classes[n] for n in sorted({n for path, n in found if path.parent != folder / classes[n]})]
    texts = Counter(map(readable, classes))
    for names, what in (
        (empty, "classes without images, which count for the chance level"),
        (deep, "classes with images in subfolders, which are taken together"),
        (
            [name for name in classes if texts[readable(name)] > 1],
            "classes with equal texts, which no prompt tells apart",
        ),
        (
            [name for name in classes if WNID.fullmatch(name) and name not in wordnet_names()],
            "classes with WordNet ids that are not in ImageNet's 1,000, which prompts take as they are",
        ),
        ([path.name for path in others], f"files that do not end in {', '.join(SUFFIXES)}, which are skipped"),
    ):
        if names:
            logger.warning("%s: %d %s: %s", folder, len(names), what, shortened(names, 3, ", "))
    return found


def readable(name: str) -> str:
    """The name of a class in prompts: a WordNet id of ImageNet has its name there, "AnnualCrop" is "Annual Crop"."""
    if name in wordnet_names():
        return wordnet_names()[name]
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ").strip()


WNID: Final = re.compile(r"n\d{8}")


@cache
def wordnet_names() -> dict[str, str]:
    """The names of ImageNet's classes by their WordNet ids."""
    info = set_infos()["imagenet"]
    return dict(zip(info.wnids, info.names, strict=True))


def read_images(paths: Sequence[Path], size_px: int) -> tuple[Tensor, list[str]]:
    """Read images as uint8 [n 3 s s]: resize the short side to `size_px`, then crop the centre, as the papers do.

    Of files that are no usable images, there is no row. Returns the problem of each file too, empty for an image.
    """
    preprocess = PreprocessConfig(size_px=size_px, mode="crop")
    images, problems = [torch.zeros(0, 3, size_px, size_px, dtype=torch.uint8)], []
    for path in paths:
        try:
            images.append(fit(decode(read_limited(path, MAX_SAMPLE_BYTES), LIMITS), preprocess)[None])
            problems.append("")
        except (OSError, ImageRejected) as error:
            problems.append(f"{path}: {error}")
    return torch.cat(images), problems
