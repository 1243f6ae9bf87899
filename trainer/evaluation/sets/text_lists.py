"""Data sets whose splits and labels are text files: Food-101, CUB, Aircraft, DTD, Pets, SUN397, Caltech-101."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from common.errors import UserError
from trainer.evaluation.annotations import integer, read_lines
from trainer.evaluation.sets.base import LabelledImages, SplitName, first_folder, readable
from trainer.evaluation.tasks.base import ImageSource


def labelled(
    rows: Iterable[tuple[str, str]], root: Path, classes: Sequence[str], names: Sequence[str], files: Sequence[Path]
) -> LabelledImages:
    """Build from rows (path below `root`, class). Raises UserError, naming the list, for a class that is not listed."""
    index = {name: number for number, name in enumerate(classes)}
    images, targets = [], []
    for path, name in rows:
        if name not in index:
            raise UserError(f"{files[0]}: {path!r:.80} has the unknown class {name!r:.40}; download the files again")
        images.append(ImageSource(path=root / path))
        targets.append(index[name])
    return LabelledImages(images=images, targets=targets, classes=names, files=files, form="official files")


def columns(path: Path, least: int) -> list[list[str]]:
    """The blank-separated columns of each line. Raises UserError, naming the line, if there are fewer than `least`."""
    rows = [line.split() for line in read_lines(path)]
    for number, row in enumerate(rows, 1):
        if len(row) < least:
            raise UserError(f"{path}: line {number} has {len(row)} columns, not {least}; download the file again")
    return rows


def read_food101(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """Food-101: meta/{train,test}.txt with CLASS/ID, meta/classes.txt, and images/CLASS/ID.jpg."""
    folder = first_folder(folder, "food-101")
    path, listed = folder / "meta" / f"{split}.txt", folder / "meta" / "classes.txt"
    if not (path.is_file() and listed.is_file()):
        return None
    classes = read_lines(listed)
    rows = [(f"{line}.jpg", line.partition("/")[0]) for line in read_lines(path)]
    return labelled(rows, folder / "images", classes, [readable(name) for name in classes], [path, listed])


def read_cub(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """CUB-200-2011: images.txt, image_class_labels.txt, train_test_split.txt and classes.txt, with ids from 1."""
    folder = first_folder(folder, "CUB_200_2011")
    files = [folder / f"{name}.txt" for name in ("images", "image_class_labels", "train_test_split", "classes")]
    if split == "val" or not all(path.is_file() for path in files):
        return None
    paths, labels, training, listed = ({row[0]: row[1] for row in columns(path, 2)} for path in files)
    order = {key: integer(key, f"{files[3]}: line {number}") for number, key in enumerate(listed, 1)}
    classes = sorted(listed, key=order.__getitem__)
    for number in paths:
        if number not in labels or number not in training:
            raise UserError(f"{files[1]}: image {number} has no label or no split; download the files again")
    rows = [
        (path, labels[number])
        for number, path in paths.items()
        if training[number] == {"test": "0", "train": "1"}[split]
    ]
    names = [readable(listed[key].partition(".")[2] or listed[key]) for key in classes]
    return labelled(rows, folder / "images", classes, names, files)


def read_aircraft(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """FGVC-Aircraft, variants: images_variant_{train,val,test}.txt with `ID VARIANT`, variants.txt and images/ID.jpg."""
    folder = first_folder(folder, "fgvc-aircraft-2013b/data", "data")
    path, listed = folder / f"images_variant_{split}.txt", folder / "variants.txt"
    if not (path.is_file() and listed.is_file()):
        return None
    rows = [line.partition(" ") for line in read_lines(path)]
    classes = read_lines(listed)
    return labelled([(f"{row[0]}.jpg", row[2]) for row in rows], folder / "images", classes, classes, [path, listed])


def read_dtd(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """DTD, partition 1: labels/{train,val,test}1.txt with CLASS/IMAGE, and images/."""
    folder = first_folder(folder, "dtd")
    path = folder / "labels" / f"{split}1.txt"
    if not path.is_file():
        return None
    lines = read_lines(path)
    classes = sorted({line.partition("/")[0] for line in lines})
    rows = [(line, line.partition("/")[0]) for line in lines]
    return labelled(rows, folder / "images", classes, [readable(name) for name in classes], [path])


def read_pets(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """Oxford-IIIT Pets: annotations/{trainval,test}.txt with `NAME CLASS SPECIES BREED`, class ids from 1, and images/NAME.jpg."""
    folder = first_folder(folder, "oxford-iiit-pet")
    path = folder / "annotations" / f"{'trainval' if split == 'train' else split}.txt"
    if not path.is_file():
        return None
    rows = [row for row in columns(path, 2) if not row[0].startswith("#")]
    name_of = {row[1]: row[0].rpartition("_")[0] for row in rows}
    classes = sorted(name_of, key=lambda key: (len(key), key))
    pairs = [(f"{row[0]}.jpg", row[1]) for row in rows]
    return labelled(pairs, folder / "images", classes, [readable(name_of[key]) for key in classes], [path])


def read_sun397(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """SUN397: ClassName.txt with /a/abbey, and a list of images /a/abbey/IMAGE.jpg.

    The list is test.txt or Testing_01.txt, and for training train.txt or Training_01.txt.
    """
    folder = first_folder(folder, "SUN397")
    listed = folder / "ClassName.txt"
    if split == "val" or not listed.is_file():
        return None
    official = {"test": "Testing_01.txt", "train": "Training_01.txt"}[split]
    path = next((folder / name for name in (f"{split}.txt", official) if (folder / name).is_file()), None)
    if path is None:
        raise UserError(
            f"{folder} has no list of {split} images; write {split}.txt with one path such as /a/abbey/sun_1.jpg per "
            f"line, or take {official} from the official partitions"
        )
    classes = [line.strip("/") for line in read_lines(listed)]
    lines = [line.strip("/") for line in read_lines(path)]
    names = [readable(" ".join(name.split("/")[1:])) for name in classes]
    return labelled([(line, line.rpartition("/")[0]) for line in lines], folder, classes, names, [path, listed])


def read_caltech101(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """Caltech-101 with lists of images CLASS/IMAGE.jpg: test.txt, train.txt and val.txt. The background class is included: 102."""
    inner = first_folder(folder, "101_ObjectCategories", "caltech-101/101_ObjectCategories")
    names = (folder / f"{split}.txt", inner / f"{split}.txt")
    listed = next((path for path in names if path.is_file()), None)
    if listed is None:
        return None
    lines = read_lines(listed)
    classes = sorted({line.partition("/")[0] for line in lines})
    rows = [(line, line.partition("/")[0]) for line in lines]
    return labelled(rows, inner, classes, [readable(name) for name in classes], [listed])
