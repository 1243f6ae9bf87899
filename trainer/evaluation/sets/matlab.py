"""Data sets with labels in MATLAB files: Stanford Cars and Flowers-102."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from trainer.evaluation.annotations import integer
from trainer.evaluation.sets.base import LabelledImages, SplitName, first_folder
from trainer.evaluation.tasks.base import ImageSource


def read_mat(path: Path, *names: str) -> list[NDArray[Any]]:
    """The variables of a MATLAB file (version 5 to 7) as flat arrays. Raises UserError if one is missing."""
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError as error:
        raise UserError(f"{path} is a MATLAB file, and scipy is not installed; run `pip install scipy`") from error
    try:
        content = loadmat(str(path), squeeze_me=True)
        return [np.atleast_1d(content[name]) for name in names]
    except (MatReadError, OSError, ValueError, TypeError, LookupError, NotImplementedError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}; download it again") from error


def read_cars(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """Stanford Cars: devkit/cars_meta.mat, cars_test_annos_withlabels.mat and cars_test/.

    For training: devkit/cars_train_annos.mat and cars_train/.
    """
    folder = first_folder(folder, "stanford_cars")
    listed = folder / "devkit" / "cars_meta.mat"
    name = {"test": "cars_test_annos_withlabels.mat", "train": "cars_train_annos.mat"}.get(split, "")
    labels = next((path for path in (folder / name, folder / "devkit" / name) if path.is_file()), None)
    if labels is None or not listed.is_file():
        return None
    classes = [str(name) for name in read_mat(listed, "class_names")[0]]
    rows = read_mat(labels, "annotations")[0]
    try:
        entries = [(str(row["fname"]), row["class"]) for row in rows]
    except (ValueError, TypeError, IndexError) as error:
        raise UserError(f"{labels}: an annotation has no `fname` or `class`; download the file again") from error
    pairs = [(name, integer(number, f"{labels}: entry {i}") - 1) for i, (name, number) in enumerate(entries)]
    check_targets([target for _, target in pairs], len(classes), labels)
    return LabelledImages(
        images=[ImageSource(path=folder / f"cars_{split}" / name) for name, _ in pairs],
        targets=[target for _, target in pairs],
        classes=classes,
        files=[listed, labels],
        form="official files",
    )


def read_flowers102(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """Flowers-102: setid.mat (`trnid`, `valid`, `tstid`), imagelabels.mat (`labels`, from 1) and jpg/image_00001.jpg."""
    folder = first_folder(folder, "flowers-102")
    path, labels = folder / "setid.mat", folder / "imagelabels.mat"
    if not (path.is_file() and labels.is_file()):
        return None
    numbers, label_of = (
        [integer(number, f"{file}: entry {i} of {name}") for i, number in enumerate(read_mat(file, name)[0])]
        for file, name in ((path, {"train": "trnid", "val": "valid", "test": "tstid"}[split]), (labels, "labels"))
    )
    outside = next((number for number in numbers if not 1 <= number <= len(label_of)), None)
    if outside is not None:
        raise UserError(f"{path}: image {outside} has no label in {labels.name}; download both again")
    targets = [label_of[number - 1] - 1 for number in numbers]
    check_targets(targets, 102, labels)
    return LabelledImages(
        images=[ImageSource(path=folder / "jpg" / f"image_{number:05d}.jpg") for number in numbers],
        targets=targets,
        classes=[str(i + 1) for i in range(102)],
        files=[path, labels],
        form="official files",
    )


def check_targets(targets: list[int], n_classes: int, path: Path) -> None:
    """Raise UserError, naming the entry, for a label without a class."""
    wrong = next((i for i, target in enumerate(targets) if not 0 <= target < n_classes), None)
    if wrong is not None:
        raise UserError(
            f"{path}: entry {wrong} has label {targets[wrong] + 1}, but there are {n_classes} classes; download the "
            "file again"
        )
