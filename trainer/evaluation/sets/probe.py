"""Training, validation and test split of a data set, for the linear probe (MERU, table 6).

Official splits are used where there are any. Otherwise the validation split is the tail of the training split, or of
each of its classes where the tail of the files lacks classes: official lists are often sorted by class, while the
papers took the order of TensorFlow Datasets. `indices_train.txt` and `indices_val.txt` select other images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from hypergrit_common.errors import UserError
from trainer.evaluation.catalog import SetInfo, set_infos
from trainer.evaluation.sets.annotations import checksums
from trainer.evaluation.sets.base import (
    LabelledImages,
    SplitName,
    indices_file,
    read_class_folders,
    select,
)
from trainer.evaluation.sets.registry import read_split
from trainer.evaluation.task import ImageSource, MissingFilesError

FOLDER: Final = "linear_probe"
"""Folder of sets in plain folders SET/{train,val,test}/CLASS/IMAGE, which go before the official files."""
VAL_SHARE: Final = {"food101": 0.1, "cifar10": 0.1, "cifar100": 0.1, "clevr": 0.1}
"""Share of the training split that is the validation split of sets without one; 0.2 for the others."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Images and their class indices."""

    images: Sequence[ImageSource]
    labels: Sequence[int]

    def take(self, rows: Sequence[int]) -> "Split":
        """The images at `rows`."""
        return Split(images=[self.images[i] for i in rows], labels=[self.labels[i] for i in rows])


@dataclass(frozen=True, kw_only=True)
class ProbeData:
    """The three splits of a set, in the order in which they are stored, and notes on how they were made."""

    n_classes: int
    train: Split
    val: Split
    test: Split
    rules: Mapping[str, str] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)


def read_probe(root: Path, key: str) -> ProbeData:
    """Read the splits of a set below `root`.

    Raises MissingFilesError, naming the layout, if a split is missing, and UserError for malformed files.
    """
    info = set_infos()[key]
    plain = root / FOLDER / key
    train, val, test = (plain_split(plain, s) if plain.is_dir() else listed(root / key, key, s) for s in SPLITS)
    if train is None or test is None:
        raise MissingFilesError(expected(root / key, info))
    splits = [labels_of(part, train) for part in (train, val, test) if part is not None]
    rule = "split of the files"
    if val is None:
        first, middle, rule = split_off(splits[0], VAL_SHARE.get(key, 0.2))
        if not middle.images:
            raise UserError(
                f"{train.files[0]} has one image of each class, which leaves none for the validation split; give more, or val/"
            )
        splits = [first, middle, splits[1]]
    sizes = [len(split.images) for split in splits]
    subset = "train {}, val {}, test {}".format(*sizes)
    if sizes != [info.n_train, info.n_val, info.n_images]:
        subset += f"; the papers use {info.n_train}, {info.n_val}, {info.n_images}"
    files = [path for part in (train, val, test) if part is not None for path in part.files]
    return ProbeData(
        n_classes=len(train.classes),
        train=splits[0],
        val=splits[1],
        test=splits[2],
        rules={"format": train.form, "val": rule, "images": subset},
        checksums=checksums(root, *dict.fromkeys(files)),
    )


SPLITS: Final[tuple[SplitName, ...]] = ("train", "val", "test")


def expected(folder: Path, info: SetInfo) -> str:
    """The layout of a set, as one line."""
    plain = f"plain folders {folder}/{{train,val,test}}/CLASS/IMAGE"
    return f"expected {folder}/{info.train_files} beside {info.files}, or {plain}"


def plain_split(folder: Path, split: SplitName) -> LabelledImages | None:
    """Read FOLDER/SPLIT/CLASS/IMAGE with any number of classes; None without the folder."""
    return read_class_folders(folder / split, "plain folders") if (folder / split).is_dir() else None


def listed(folder: Path, key: str, split: SplitName) -> LabelledImages | None:
    """A split of the official files or of plain folders, with the index file of the split applied.

    Raises UserError for a wrong number of classes. A set without an official split has none without an index file.
    """
    name = indices_file(split)
    found = read_split(folder, key, split)
    has_indices = (folder / name).is_file()
    if found is None and split == "val" and has_indices:
        found = read_split(folder, key, "train")
    if found is None or (found.is_full and not has_indices):
        return None
    if len(found.classes) != set_infos()[key].n_classes:
        raise UserError(
            f"{folder} has {len(found.classes)} classes in the {split} split, but {key} has "
            f"{set_infos()[key].n_classes}; complete the folder"
        )
    if has_indices:
        found = replace(select(found, folder, name), files=[*found.files, folder / name])
    return found


def labels_of(part: LabelledImages, train: LabelledImages) -> Split:
    """A split with the class indices of the training split. Raises UserError for a class that it lacks."""
    index = {name: i for i, name in enumerate(train.classes)}
    wrong = next((name for name in part.classes if name not in index), None)
    if wrong is not None:
        raise UserError(
            f"{part.files[0]} has the class {wrong!r:.80}, which {train.files[0]} lacks; correct one of them"
        )
    if not part.images:
        raise UserError(f"{part.files[0]} lists no images; download it again")
    return Split(images=part.images, labels=[index[part.classes[target]] for target in part.targets])


def split_off(split: Split, share: float) -> tuple[Split, Split, str]:
    """Split off the last images, or those of each class if the last images lack classes; and the rule that was used.

    In the second case, a class with several images keeps one and gives one.
    """
    n = len(split.labels)
    first = n - round(share * n)
    if set(split.labels[first:]) == set(split.labels):
        return split.take(range(first)), split.take(range(first, n)), f"last {share:.0%} of train"
    by_class: dict[int, list[int]] = {}
    for i, label in enumerate(split.labels):
        by_class.setdefault(label, []).append(i)
    tail = {
        i
        for rows in by_class.values()
        for i in rows[len(rows) - min(len(rows) - 1, max(1, round(share * len(rows)))) :]
    }
    train, val = (split.take([i for i in range(n) if (i in tail) == is_val]) for is_val in (False, True))
    return train, val, f"last {share:.0%} of each class of train"
