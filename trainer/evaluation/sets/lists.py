"""Data sets whose labels are text files, folders, JSON or MATLAB files; torchvision reads those of five sets."""

import math
import tempfile
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hypergrit_common.errors import UserError
from hypergrit_common.files import read_limited
from hypergrit_common.text import one_line
from trainer.evaluation.sets.annotations import field, integer, read_json, read_lines
from trainer.evaluation.sets.base import (
    LabelledImages,
    Reader,
    SplitName,
    first_folder,
    indices_file,
    read_class_folders,
    readable,
)
from trainer.evaluation.task import ImageSource

SPLITS: Final = {"train": "train", "val": "val", "test": "test"}


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
    return LabelledImages(images=images, targets=targets, classes=names, files=files)


def columns(path: Path, least: int) -> list[list[str]]:
    """The blank-separated columns of each line. Raises UserError, naming the line, if there are fewer than `least`."""
    rows = [line.split() for line in read_lines(path)]
    for number, row in enumerate(rows, 1):
        if len(row) < least:
            raise UserError(f"{path}: line {number} has {len(row)} columns, not {least}; download the file again")
    return rows


def by_torchvision(
    name: str,
    place: str,
    files: Sequence[str],
    inner: Sequence[str] = (),
    splits: Mapping[str, str] = SPLITS,
    class_name: Callable[[str, Path], str] = lambda name, image: name,
) -> Reader:
    """A reader of the lists `files` by a class of torchvision.datasets, which expects the set's folder at `place`.

    The folder is the first of `inner` below DATA/KEY, or DATA/KEY itself. In `files`, {} is torchvision's name of the split.
    `class_name` takes torchvision's name of a class and an image of it.
    """

    def read(folder: Path, split: SplitName = "test") -> LabelledImages | None:
        from torchvision import datasets  # takes a second

        folder = first_folder(folder, *inner)
        paths = [folder / file.format(splits.get(split)) for file in files]
        if split not in splits or not all(path.is_file() for path in paths):
            return None
        # The class gets the lists alone, without blank lines and comments: images are checked where they are read.
        checks = dict.fromkeys(("_check_exists", "_check_integrity"), lambda self: True)
        with tempfile.TemporaryDirectory() as root:
            for path in paths:
                copy = Path(root, place, path.relative_to(folder))
                copy.parent.mkdir(parents=True, exist_ok=True)
                lines = read_lines(path) if path.suffix == ".txt" else []
                content = "\n".join(line for line in lines if not line.startswith("#")).encode()
                copy.write_bytes(content if path.suffix == ".txt" else path.read_bytes())
            try:
                for path in (path for path in paths if path.suffix == ".mat"):
                    check_mat(path)
                data = type(name, (getattr(datasets, name),), checks)(root, split=splits[split])
            except Exception as error:  # it checks no row: a wrong one fails in any way
                variables = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
                row = next((found[key] for found in variables for key in ("line", "image_id") if key in found), None)
                reason = f"{type(error).__name__}: {one_line(error)}" + (f" at {row!r:.80}" if row else "")
                remedy = "run `pip install scipy`" if isinstance(error, ImportError) else "download again"
                raise UserError(f"{' and '.join(map(str, paths))}: {reason}; {remedy}") from error
        targets = [integer(label, f"{paths[-1]}: entry {i}") for i, label in enumerate(data._labels)]
        check_targets(targets, len(data.classes), paths[-1])
        found = data._images if name == "OxfordIIITPet" else data._image_files
        images = [folder / Path(path).relative_to(Path(root, place)) for path in found]
        examples = dict(zip(targets, images, strict=True))
        return LabelledImages(
            images=[ImageSource(path=path) for path in images],
            targets=targets,
            classes=[class_name(text, examples.get(n, folder)) for n, text in enumerate(data.classes)],
            files=paths,
        )

    return read


read_food101_json = by_torchvision(
    "Food101", "food-101", ["meta/{}.json"], (), {"train": "train", "test": "test"}, lambda name, _: readable(name)
)
AIRCRAFT: Final = "fgvc-aircraft-2013b/data"
read_aircraft = by_torchvision("FGVCAircraft", AIRCRAFT, ["images_variant_{}.txt", "variants.txt"], [AIRCRAFT, "data"])
read_dtd = by_torchvision("DTD", "dtd/dtd", ["labels/{}1.txt"], ["dtd"], class_name=lambda name, _: readable(name))
read_pets = by_torchvision(
    *("OxfordIIITPet", "oxford-iiit-pet", ["annotations/{}.txt"], ["oxford-iiit-pet"]),
    splits={"train": "trainval", "test": "test"},
    class_name=lambda _, image: readable(image.stem.rpartition("_")[0]),  # torchvision capitalizes the names
)
read_flowers102 = by_torchvision("Flowers102", "flowers-102", ["setid.mat", "imagelabels.mat"], ["flowers-102"])


def read_food101(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """Food-101: meta/{train,test}.txt with CLASS/ID, meta/classes.txt, and images/CLASS/ID.jpg.

    Without these lists, torchvision reads meta/{train,test}.json, whose classes are in another order.
    """
    folder = first_folder(folder, "food-101")
    path, listed = folder / "meta" / f"{split}.txt", folder / "meta" / "classes.txt"
    if not (path.is_file() and listed.is_file()):
        return read_food101_json(folder, split)
    classes = read_lines(listed)  # whose order torchvision replaces by that of the sorted names
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


# Data sets whose labels are folders, and CLEVR.

CLEVR_COUNTS: Final = (10, 3, 4, 5, 6, 7, 8, 9)
"""Numbers of objects in the order of the labels of MERU's evaluation."""
CLEVR_IMAGES: Final = 5000


def read_imagenet(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """ImageNet: val/WNID/*.JPEG, its test split in the papers. The class is the rank of its WordNet id."""
    if split != "test" or not (folder / "val").is_dir():
        return None
    return read_class_folders(folder / "val")


def folders(*names: str, is_full: bool = False) -> Reader:
    """A reader of CLASS/IMAGE in the first of these folders that exists; {} is the name of the split."""

    def read(folder: Path, split: SplitName = "test") -> LabelledImages | None:
        inner = first_folder(folder, *(name.format("valid" if split == "val" else split) for name in names))
        return None if inner == folder else read_class_folders(inner, is_full=is_full)

    return read


def read_clevr(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """CLEVR: scenes/CLEVR_val_scenes.json and images/val/, for training CLEVR_train_scenes.json and images/train/.

    The class is the number of objects. The first 5,000 scenes are used, in the order of the file, unless an index file
    selects others.
    """
    inner = first_folder(folder, "CLEVR_v1.0")
    name = {"test": "val", "train": "train"}.get(split, "")
    path = inner / "scenes" / f"CLEVR_{name}_scenes.json"
    if not path.is_file():
        return None
    images, targets = [], []
    scenes = field(read_json(path), "scenes", list, str(path))
    for number, scene in enumerate(scenes if (folder / indices_file(split)).is_file() else scenes[:CLEVR_IMAGES]):
        where = f"{path}: scene {number}"
        count = len(field(scene, "objects", list, where))
        if count not in CLEVR_COUNTS:
            raise UserError(f"{where} has {count} objects; CLEVR has 3 to 10: download the file again")
        images.append(ImageSource(path=inner / "images" / name / field(scene, "image_filename", str, where)))
        targets.append(CLEVR_COUNTS.index(count))
    classes = [str(count) for count in CLEVR_COUNTS]
    return LabelledImages(images=images, targets=targets, classes=classes, files=[path])


# Stanford Cars, whose labels are in MATLAB files.


MATRIX, COMPRESSED = 14, 15  # types of an array, and of a compressed one, in a MATLAB file (version 5 to 7)
CELL, STRUCT, KINDS = 1, 2, {1, 2, *range(4, 16)}  # classes of arrays: the others are texts and numbers
MAX_DEPTH: Final = 20
MAX_MAT_BYTES: Final = 1 << 26  # those of the sets have less than a megabyte


def read_mat(path: Path, *names: str) -> list[NDArray[Any]]:
    """The variables of a MATLAB file (version 5 to 7) as flat arrays. Raises UserError if one is missing."""
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError as error:
        raise UserError(f"{path} is a MATLAB file, and scipy is not installed; run `pip install scipy`") from error
    try:
        check_mat(path)
        content = loadmat(str(path), squeeze_me=True)
        return [np.atleast_1d(content[name]) for name in names]
    except (MatReadError, OSError, ValueError, TypeError, LookupError, NotImplementedError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}; download it again") from error


def check_mat(path: Path) -> None:
    """Raise ValueError for a MATLAB file whose variables need far more memory than a list of its size. Raises zlib.error.

    Compressed ones may be as large as the largest file, and an array has no more values than its content holds.
    """
    data, room = read_limited(path, MAX_MAT_BYTES), MAX_MAT_BYTES
    order: Literal["big", "little"] = "big" if data[126:128] == b"MI" else "little"
    for kind, variable in mat_elements(data[128:], order):
        parts = [(kind, variable)]
        if kind == COMPRESSED:
            content = zlib.decompressobj().decompress(variable, room)
            room -= len(content)
            if room <= 0:
                raise ValueError(f"it has more than {MAX_MAT_BYTES} bytes after decompression")
            parts = [*mat_elements(content, order)]
        for kind, part in parts:
            if kind == MATRIX:
                check_matrix(part, order)


def mat_elements(data: bytes, order: Literal["big", "little"]) -> Iterator[tuple[int, bytes]]:
    """Yield the types and contents of the elements in a part of a MATLAB file. Raises ValueError unless they fill it."""
    start = 0
    while start < len(data):
        kind, n_bytes = (int.from_bytes(data[start + i : start + i + 4], order) for i in (0, 4))
        begin, end = start + 8, start + 8 + n_bytes + (0 if kind == COMPRESSED else -n_bytes % 8)
        if kind >> 16:  # the short form: at most 4 bytes beside the type
            kind, n_bytes, begin, end = kind & 0xFFFF, kind >> 16, start + 4, start + 8
        if max(begin + n_bytes, end) > min(end, len(data)):
            raise ValueError("an element is longer than what holds it")
        yield kind, data[begin : begin + n_bytes]
        start = end


def check_matrix(content: bytes, order: Literal["big", "little"], depth: int = 0) -> None:
    """Raise ValueError for an array that declares more values than it has, itself or within. Raises LookupError."""
    parts = [*mat_elements(content, order)]
    arrays = [part for kind, part in parts if kind == MATRIX]
    flags, shape, _, *more = (part for kind, part in parts if kind != MATRIX)
    kind = flags[0 if order == "little" else 3]
    n_values = math.prod(int.from_bytes(shape[i : i + 4], order) for i in range(0, len(shape), 4))
    n_parts, most = n_values, len(content)
    if kind in (CELL, STRUCT):
        n_fields = len(more[1]) // (int.from_bytes(more[0], order) or 1) if kind == STRUCT else 1
        n_parts, most = n_values * n_fields, len(arrays)
    if n_values > len(content) or n_parts > most or kind not in KINDS or depth > MAX_DEPTH:
        raise ValueError(f"an array of class {kind} declares {n_values} values in {len(content)} bytes")
    for array in filter(None, arrays):
        check_matrix(array, order, depth + 1)


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
    )


def check_targets(targets: list[int], n_classes: int, path: Path) -> None:
    """Raise UserError, naming the entry, for a label without a class."""
    wrong = next((i for i, target in enumerate(targets) if not 0 <= target < n_classes), None)
    if wrong is not None:
        raise UserError(
            f"{path}: entry {wrong} has label {targets[wrong] + 1}, but there are {n_classes} classes; download the "
            "file again"
        )
