"""Data sets with all images in one file: CIFAR and STL-10 in their binary versions, MNIST, PCam."""

import gzip
import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypergrit_common.errors import UserError
from trainer.evaluation.sets.annotations import integer, read_lines
from trainer.evaluation.sets.base import LabelledImages, SplitName, first_folder
from trainer.evaluation.task import ImageSource, ImageStack

CIFAR_SIDE = 32
STL10_SIDE = 96
MNIST_SIDE = 28
MNIST_IMAGES = 60_000
"""Of the split for training; the other has fewer."""


class Planes:
    """Rows [n 3 h w] of color planes as images. STL-10 stores columns first: `transposed`."""

    def __init__(self, rows: NDArray[np.uint8], transposed: bool = False) -> None:
        self.rows, self.axes = rows, (2, 1, 0) if transposed else (1, 2, 0)

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]:
        return np.ascontiguousarray(np.asarray(self.rows[index]).transpose(self.axes))


class Gray:
    """Gray images [n h w] as RGB."""

    def __init__(self, rows: NDArray[np.uint8]) -> None:
        self.rows = rows

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]:
        return np.repeat(np.asarray(self.rows[index])[..., None], 3, axis=2)


class Stored:
    """Images [n h w 3] of an HDF5 data set, which are read one by one."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]:
        return np.asarray(self.rows[index], np.uint8)


def packed(
    path: Path, stack: ImageStack, labels: NDArray[Any], classes: list[str], files: list[Path]
) -> LabelledImages:
    """Build from a file of images and their labels. Raises UserError for a label without a class."""
    targets = [integer(label, f"{files[-1]}: image {i}") for i, label in enumerate(labels)]
    wrong = next((i for i, target in enumerate(targets) if not 0 <= target < len(classes)), None)
    if wrong is not None:
        raise UserError(
            f"{files[-1]}: image {wrong} has label {targets[wrong]}, but there are {len(classes)} classes; download "
            "the files again"
        )
    images = [ImageSource(path=path, index=i, stack=stack) for i in range(len(targets))]
    return LabelledImages(images=images, targets=targets, classes=classes, files=files)


def read_records(path: Path, n_bytes: int) -> NDArray[np.uint8]:
    """Map a file of records of `n_bytes` each. Raises UserError if it is empty or ends within a record."""
    size = path.stat().st_size
    if not size or size % n_bytes:
        raise UserError(f"{path} has {size} bytes, no multiple of {n_bytes}; download it again")
    return np.memmap(path, np.uint8, "r").reshape(-1, n_bytes)


def refuse_pickle(folder: Path, names: tuple[str, ...], version: str) -> None:
    """Raise UserError if the folder holds a file of the Python version of CIFAR, which is a pickle."""
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is not None:
        raise UserError(f"{found} is a pickle, which can run code when it is read; use the binary version, {version}")


def read_cifar10(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """CIFAR-10, binary version: test_batch.bin with records (label, 3 planes of 32 x 32), and batches.meta.txt.

    For training: data_batch_1.bin to data_batch_5.bin.
    """
    inner = first_folder(folder, "cifar-10-batches-bin")
    files = {"test": ["test_batch.bin"], "train": [f"data_batch_{i}.bin" for i in range(1, 6)], "val": []}[split]
    paths, names = [inner / name for name in files], inner / "batches.meta.txt"
    if not paths or not all(path.is_file() for path in (*paths, names)):
        refuse_pickle(
            folder, ("cifar-10-batches-py/test_batch", "test_batch", "cifar-10-python.tar.gz"), "cifar-10-binary.tar.gz"
        )
        return None
    parts = []
    for path in paths:
        rows = read_records(path, 1 + 3 * CIFAR_SIDE**2)
        stack = Planes(rows[:, 1:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE))
        parts.append(packed(path, stack, rows[:, 0], read_lines(names), [path, names]))
    return replace(
        parts[0],
        images=[image for part in parts for image in part.images],
        targets=[target for part in parts for target in part.targets],
        files=[*paths, names],
    )


def read_cifar100(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """CIFAR-100, binary version: {train,test}.bin with records (coarse label, label, 3 planes), and fine_label_names.txt."""
    inner = first_folder(folder, "cifar-100-binary")
    path, names = inner / f"{split}.bin", inner / "fine_label_names.txt"
    if not (path.is_file() and names.is_file()):
        refuse_pickle(folder, ("cifar-100-python/test", "test", "cifar-100-python.tar.gz"), "cifar-100-binary.tar.gz")
        return None
    rows = read_records(path, 2 + 3 * CIFAR_SIDE**2)
    classes = [name.replace("_", " ") for name in read_lines(names)]
    stack = Planes(rows[:, 2:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE))
    return packed(path, stack, rows[:, 1], classes, [path, names])


def read_stl10(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """STL-10, binary version: {train,test}_X.bin, {train,test}_y.bin with labels from 1, class_names.txt."""
    # torchvision's class needs all files of the archive, hashes its 3 GB, and reads all images into memory.
    inner = first_folder(folder, "stl10_binary")
    path, labels, names = (inner / name for name in (f"{split}_X.bin", f"{split}_y.bin", "class_names.txt"))
    if not all(file.is_file() for file in (path, labels, names)):
        return None
    rows = read_records(path, 3 * STL10_SIDE**2).reshape(-1, 3, STL10_SIDE, STL10_SIDE)
    targets = read_records(labels, 1)[:, 0].astype(int) - 1
    check_counts(path, len(rows), labels, len(targets))
    return packed(path, Planes(rows, transposed=True), targets, read_lines(names), [path, names, labels])


def check_counts(path: Path, n_images: int, labels: Path, n_labels: int) -> None:
    """Raise UserError if images and labels differ in number."""
    if n_images != n_labels:
        raise UserError(f"{path} has {n_images} images, but {labels} {n_labels} labels; download both again")


def read_mnist(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """MNIST: {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, also with .gz."""
    inner = first_folder(folder, "MNIST/raw", "raw")
    start = "t10k" if split == "test" else split
    found = [
        next((inner / f"{name}{end}" for end in ("", ".gz") if (inner / f"{name}{end}").is_file()), None)
        for name in (f"{start}-images-idx3-ubyte", f"{start}-labels-idx1-ubyte")
    ]
    path, labels = found
    if path is None or labels is None:
        return None
    images, targets = read_idx(path, 3, MNIST_IMAGES * MNIST_SIDE**2), read_idx(labels, 1, MNIST_IMAGES)
    check_counts(path, len(images), labels, len(targets))
    return packed(path, Gray(images), targets, [str(i) for i in range(10)], [path, labels])


def read_idx(path: Path, n_axes: int, most: int) -> NDArray[np.uint8]:
    """Read a file in the idx format: 0, 0, 8 (unsigned bytes), number of axes, sizes as big-endian uint32, values.

    Raises UserError for another content, and for more than `most` values.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4 + 4 * n_axes)
            shape = tuple(map(int, np.frombuffer(head[4:], ">u4"))) if len(head) == 4 + 4 * n_axes else ()
            data = file.read(min(math.prod(shape), most) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}; download it again") from error
    if head[:4] != bytes((0, 0, 8, n_axes)) or not 0 < len(data) == math.prod(shape) <= most:
        raise UserError(
            f"{path} is not an idx file with {n_axes} axes of bytes, at most {most:,} of them; download it again"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def own_data(file: Any, name: str) -> Any:
    """Return a data set of an HDF5 file. Raises KeyError, and ValueError for one whose values are in other files."""
    data = file[name]
    if data.file.filename != file.filename or data.external or data.is_virtual:
        raise ValueError(f"its {name} is in another file")
    return data


def read_pcam(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """PatchCamelyon: camelyonpatch_level_2_split_{train,valid,test}_x.h5 and _y.h5, unpacked. Needs h5py."""
    name = "valid" if split == "val" else split
    path, labels = (folder / f"camelyonpatch_level_2_split_{name}_{part}.h5" for part in "xy")
    if not (path.is_file() and labels.is_file()):
        return None
    try:
        import h5py
    except ImportError as error:
        raise UserError(
            f"{path} is an HDF5 file, and h5py is not installed; install it with `pip install h5py`, or save the "
            f"images as {folder}/CLASS/IMAGE.png"
        ) from error
    try:
        images, found = own_data(h5py.File(path, "r"), "x"), own_data(h5py.File(labels, "r"), "y")
        targets = np.asarray(found).reshape(-1)
    except (OSError, KeyError, ValueError, AttributeError) as error:
        raise UserError(f"{path} or {labels.name} cannot be read: {error}; download both again") from error
    check_counts(path, len(images), labels, len(targets))
    return packed(path, Stored(images), targets, ["0", "1"], [path, labels])
