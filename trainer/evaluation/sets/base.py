"""A data set of image classification: labelled images of a split, class names and prompts."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final, Literal, Protocol

from hypergrit_common.errors import UserError
from hypergrit_common.text import shortened
from trainer.evaluation.catalog import SetInfo, set_infos
from trainer.evaluation.sets.annotations import checksums, integer, numbered_lines, read_lines
from trainer.evaluation.sets.image_folders import SUFFIXES, class_images, class_names, readable
from trainer.evaluation.task import ImageSource

logger = logging.getLogger(__name__)

CLASS_NAMES: Final = "classnames.txt"
INDICES: Final = "indices.txt"
SplitName = Literal["train", "val", "test"]


def indices_file(split: SplitName) -> str:
    """Name of the file that selects the images of a split."""
    return INDICES if split == "test" else f"indices_{split}.txt"


@dataclass(frozen=True, kw_only=True)
class LabelledImages:
    """Images of a split with class indices, in the order of the official files, and the class names of these files."""

    images: Sequence[ImageSource]
    targets: Sequence[int]
    classes: Sequence[str]
    files: Sequence[Path]
    """Annotation files, or the folder whose listing defines the labels."""
    form: str = "official files"
    """Name of the format that was read, for the result."""
    is_full: bool = False
    """True if the files do not define the subset that the papers use."""


class Reader(Protocol):
    """Reads the official files of a split in a folder; None if they are not there or define no such split.

    Raises UserError for malformed files.
    """

    def __call__(self, folder: Path, split: SplitName = "test") -> LabelledImages | None: ...


@dataclass(frozen=True, kw_only=True)
class ZeroShotSet:
    """A data set that is ready to be embedded."""

    info: SetInfo
    images: Sequence[ImageSource]
    targets: Sequence[int]
    names: Sequence[str]
    rules: dict[str, str]
    checksums: dict[str, str]


def finish(info: SetInfo, root: Path, folder: Path, found: LabelledImages) -> ZeroShotSet:
    """Choose the class names and apply `indices.txt`. Raises UserError for a wrong number of classes or images."""
    files = list(found.files)
    n_found = len(found.classes)
    if n_found != info.n_classes:
        raise UserError(f"{folder} has {n_found} classes, but {info.key} has {info.n_classes}; complete the folder")
    names, source = list(found.classes), FILES
    if (folder / CLASS_NAMES).is_file():
        files.append(folder / CLASS_NAMES)
        names, source = read_lines(folder / CLASS_NAMES), CLASS_NAMES
    elif tuple(names) == info.names or is_numbered(names, info):
        names, source = list(info.names), info.names_source
    if len(names) != info.n_classes:
        raise UserError(
            f"{folder / CLASS_NAMES} has {len(names)} lines; give {info.n_classes}, one class name per line in the "
            "order of the labels"
        )
    warn_of_equal(folder / CLASS_NAMES if source == CLASS_NAMES else folder, tuple(names))
    if source == FILES and info.key in set_infos() and all(map(CODE.fullmatch, names)) and {*names} != {*info.names}:
        raise UserError(
            f"{folder / CLASS_NAMES} is missing; the files of {info.key} carry no class names: write "
            f"{info.n_classes} lines, one class name per line in the order of the labels"
        )
    if not found.images:
        raise UserError(
            f"{folder} has no test images; download it again, or give CLASS/IMAGE that end in {', '.join(SUFFIXES)}"
        )
    subset = "full" if found.is_full else "test"
    if (folder / INDICES).is_file():
        files.append(folder / INDICES)
        found = select(found, folder, INDICES)
        subset = INDICES
    if len(found.images) != info.n_images:
        subset += f" ({len(found.images)} images; the papers use {info.n_images})"
    rules = {"format": found.form, "subset": subset, "class names": source, "prompts": "MERU, table 8"}
    return ZeroShotSet(
        info=info,
        images=found.images,
        targets=found.targets,
        names=names,
        rules=rules,
        checksums=checksums(root, *dict.fromkeys(files)),
    )


@cache
def warn_of_equal(place: Path, names: tuple[str, ...]) -> None:
    """Warn once of classes with the same name, which a model cannot tell apart."""
    if equal := [f"{name!r} ({n} times)" for name, n in Counter(names).items() if n > 1]:
        logger.warning("%s: classes have the same name: %s; give each its own", place, shortened(equal, 5, ", "))


FILES: Final = "the data set's files"
CODE: Final = re.compile(r"\d+|[A-Z]{2}")
"""A number, or that of a country: no name of a class, unless the classes of the set are numbers."""


def is_numbered(names: Sequence[str], info: SetInfo) -> bool:
    """True for the numbers from 0 or 1 of classes that have names, in the order of these."""
    if not info.names or info.names[0].isdecimal() or not all(map(str.isdecimal, names)):
        return False
    return [*map(int, names)] in [[*range(first, first + info.n_classes)] for first in (0, 1)]


def select(found: LabelledImages, folder: Path, name: str) -> LabelledImages:
    """The images that the file `name` lists: by number in the order of the files, or by path below the set's folder.

    Raises UserError, naming the line, for an image that does not exist.
    """
    by_path = {image.path: number for number, image in enumerate(found.images)}
    chosen = []
    for number, line in numbered_lines(folder / name):
        where = f"{folder / name}: line {number}"
        index = integer(line, where) if line.isdecimal() else by_path.get(folder / line, -1)
        if not 0 <= index < len(found.images):
            raise UserError(
                f"{where}: {line!r:.80} is no image of the split; give a number below {len(found.images)} or a path "
                f"below {folder}"
            )
        chosen.append(index)
    return replace(
        found, images=[found.images[i] for i in chosen], targets=[found.targets[i] for i in chosen], is_full=False
    )


def read_class_folders(folder: Path, form: str = "official files", is_full: bool = False) -> LabelledImages:
    """Read FOLDER/CLASS/IMAGE. Classes are in the order of `class_names`; their names are made readable."""
    classes = class_names(folder)
    pairs = class_images(folder, classes)
    return LabelledImages(
        images=[ImageSource(path=path) for path, _ in pairs],
        targets=[target for _, target in pairs],
        classes=[*map(readable, classes)],
        files=[folder],
        form=form,
        is_full=is_full,
    )


def first_folder(folder: Path, *names: str) -> Path:
    """The first of the sub-folders that exists, else the folder itself. Archives unpack to different depths."""
    return next((folder / name for name in names if (folder / name).is_dir()), folder)


# Image classification on data sets of one's own: ROOT/own/NAME/CLASS/IMAGE.
#
# classnames.txt   names of the classes, one per line in the order of the folders, numbers by value; default: their names
# prompts.txt      prompts, one per line, with {} in place of the class name; default: a photo of a {}.
# tree.txt         lines `child parent name` whose leaves are the folders, for the hierarchical metrics; the root has
#                  the parent "-", and every node has its own line

FOLDER: Final = "own"
PROMPTS: Final = "prompts.txt"
TREE: Final = "tree.txt"
DEFAULT_PROMPTS: Final = ("a photo of a {}.",)


def own_sets(root: Path) -> list[str]:
    """The names of the data sets in ROOT/own, sorted. Raises UserError for the name of a known data set."""
    folder = root / FOLDER
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    taken = next((name for name in names if name in set_infos()), None)
    if taken is not None:
        raise UserError(f"{folder / taken} has the name of a known data set; rename the folder")
    return names


def read_own_set(root: Path, name: str) -> ZeroShotSet:
    """Read the images, class names and prompts of ROOT/own/NAME. Raises UserError for malformed files."""
    folder = root / FOLDER / name
    found = read_class_folders(folder, "plain folders")
    prompts = tuple(read_lines(folder / PROMPTS)) if (folder / PROMPTS).is_file() else DEFAULT_PROMPTS
    if not prompts or any("{}" not in prompt for prompt in prompts):
        raise UserError(f"{folder / PROMPTS}: each line needs {{}} in place of the class name; correct the file")
    n_images = len(found.images)
    info = SetInfo(key=name, n_classes=len(found.classes), n_images=n_images, prompts=prompts)
    data = finish(info, root, folder, found)
    files = [folder / file for file in (PROMPTS, TREE) if (folder / file).is_file()]
    return replace(
        data,
        rules=data.rules | {"prompts": PROMPTS if (folder / PROMPTS).is_file() else DEFAULT_PROMPTS[0]},
        checksums=data.checksums | checksums(root, *files),
    )
