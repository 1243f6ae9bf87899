"""Folders of images with a subfolder for each class."""

from collections.abc import Sequence
from pathlib import Path

from common.errors import UserError
from trainer.evaluation.folders import SUFFIXES
from trainer.evaluation.tasks.base import ImageSource, MissingFilesError


def class_names(folder: Path) -> tuple[str, ...]:
    """Names of the subfolders, sorted."""
    return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir()))


def list_class_folders(
    folder: Path, classes: Sequence[str], max_examples: int = 0
) -> tuple[list[ImageSource], list[int]]:
    """Images of FOLDER/CLASS/IMAGE in the order of classes and names, and the index of the class of each image.

    At most `max_examples` images (0: all), taken in turn from each class. Raises MissingFilesError if there are no
    images, and UserError for a subfolder that is not one of `classes`.
    """
    index = {name: i for i, name in enumerate(classes)}
    found = []
    for name in class_names(folder):
        if name not in index:
            raise UserError(f"{folder / name} is not one of the {len(index)} classes, such as {classes[0]}; remove it")
        images = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in SUFFIXES)
        found += [(turn, index[name], path) for turn, path in enumerate(images)]
    if not found:
        raise MissingFilesError(f"{folder} holds no images; expected {folder.name}/CLASS/*.jpg")
    if max_examples:
        found = sorted(found)[:max_examples]
    found.sort(key=lambda item: (item[1], item[0]))
    return [ImageSource(path=path) for _, _, path in found], [target for _, target, _ in found]
