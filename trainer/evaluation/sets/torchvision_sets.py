"""Data sets that torchvision reads, from each layout of their folders: DTD, Pets, Aircraft, Flowers-102, Food-101."""

import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hypergrit_common.errors import UserError
from hypergrit_common.text import one_line
from trainer.evaluation.sets.base import LabelledImages, Reader, SplitName, first_folder
from trainer.evaluation.sets.image_folders import readable
from trainer.evaluation.task import ImageSource

SPLITS: Final[Mapping[SplitName, str]] = {"train": "train", "val": "val", "test": "test"}
ROWS: Final = ("line", "image_id")
"""Names of the variables in which readers of torchvision hold the row at hand, for the message of an error."""


def by_torchvision(
    name: str,
    place: str,
    files: tuple[str, ...],
    *inner: str,
    splits: Mapping[SplitName, str] = SPLITS,
    classes: Callable[[Any], list[str]] = lambda data: list(data.classes),
) -> Reader:
    """A reader of the class `name` of torchvision.datasets, which expects the set's folder at `place`.

    Args:
        name: Name of the class.
        place: Path below the root that torchvision takes.
        files: Annotation files below the set's folder; {} is the name of the split.
        inner: Places of the set's folder below DATA/KEY; by default DATA/KEY itself.
        splits: torchvision's names of the splits.
        classes: Function of the data set that gives the class names in the order of the labels.
    """

    def read(folder: Path, split: SplitName = "test") -> LabelledImages | None:
        folder = first_folder(folder, *inner)
        paths = [folder / file.format(splits.get(split)) for file in files]
        if split not in splits or not all(path.is_file() for path in paths):
            return None
        with tempfile.TemporaryDirectory() as root:
            link = Path(root, place)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(folder.resolve())
            try:
                data = unchecked(name)(root, split=splits[split])
                found = [Path(path).relative_to(link) for path in images_of(data)]
                names, targets = classes(data), list(data._labels)
            except ImportError as error:
                raise UserError(f"{paths[0]} needs scipy, which is not installed; run `pip install scipy`") from error
            except Exception as error:  # torchvision checks no row: a wrong one fails in any way
                where = " and ".join(map(str, paths))
                reason = f"{type(error).__name__}: {one_line(error)}".replace(str(link), str(folder))
                raise UserError(f"{where} cannot be read{row_of(error)}: {reason}; download it again") from error
        wrong = next((i for i, target in enumerate(targets) if not 0 <= target < len(names)), None)
        if wrong is not None:
            raise UserError(
                f"{paths[-1]}: the label of {found[wrong].name} is {targets[wrong] + 1}, but there are {len(names)} "
                "classes; download the file again"
            )
        images = [ImageSource(path=folder / path) for path in found]
        return LabelledImages(images=images, targets=targets, classes=names, files=paths)

    return read


def unchecked(name: str) -> Any:
    """A class of torchvision.datasets that reads the lists alone, of other versions too: the images may be elsewhere."""
    from torchvision import datasets

    checks = dict.fromkeys(("_check_exists", "_check_integrity"), lambda self: True)
    return type(name, (getattr(datasets, name),), checks)


def images_of(data: Any) -> list[Path]:
    """The paths of the images of a data set of torchvision, which opens an image where it is asked for one."""
    paths: list[Path] = data._images if hasattr(data, "_images") else data._image_files
    return paths


def row_of(error: Exception) -> str:
    """The row that torchvision was reading when it failed, for a message; empty if there was none."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if "torchvision" in frame.f_code.co_filename]
    rows = [str(frame.f_locals[name]).strip() for frame in frames for name in ROWS if name in frame.f_locals]
    return f" at the row {rows[-1]!r:.80}" if rows else ""


def readable_classes(data: Any) -> list[str]:
    """The names of the classes with blanks."""
    return [readable(name) for name in data.classes]


def breeds(data: Any) -> list[str]:
    """The names of the breeds as in the names of the images: torchvision writes them with capitals."""
    names = {
        label: readable(path.stem.rpartition("_")[0]) for label, path in zip(data._labels, data._images, strict=True)
    }
    return [names[label] for label in sorted(names)]
