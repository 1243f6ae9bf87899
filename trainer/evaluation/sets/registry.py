"""The readers of the 20 data sets."""

from pathlib import Path
from typing import Final

from trainer.evaluation.catalog import set_infos
from trainer.evaluation.sets import lists, packed
from trainer.evaluation.sets.base import LabelledImages, Reader, SplitName, ZeroShotSet, finish, read_class_folders
from trainer.evaluation.task import MissingFilesError

READERS: Final[dict[str, Reader]] = {
    "imagenet": lists.read_imagenet,
    "food101": lists.read_food101,
    "cifar10": packed.read_cifar10,
    "cifar100": packed.read_cifar100,
    "cub2011": lists.read_cub,
    "sun397": lists.read_sun397,
    "cars": lists.read_cars,
    "aircraft": lists.read_aircraft,
    "dtd": lists.read_dtd,
    "pets": lists.read_pets,
    "caltech101": lists.read_caltech101,
    "flowers102": lists.read_flowers102,
    "stl10": packed.read_stl10,
    # 27,000 and 31,500 images without a split; `indices.txt` selects the papers' 5,000 and 25,200
    "eurosat": lists.folders("EuroSAT/2750", "2750", "EuroSAT_RGB", is_full=True),
    "resisc45": lists.folders("NWPU-RESISC45", is_full=True),
    # torchvision reads it by ImageFolder, which fails at an empty folder of a class.
    "country211": lists.folders("country211/{}", "{}"),
    "mnist": packed.read_mnist,
    "clevr": lists.read_clevr,
    "pcam": packed.read_pcam,
    "sst2": lists.folders("rendered-sst2/{}", "{}"),
}
"""Reader of the official files of each data set, `SetInfo.files` below DATA/KEY."""


def read_set(root: Path, key: str) -> ZeroShotSet:
    """Read the test images of a data set, with class names and prompts.

    Raises MissingFilesError, naming the layouts, without files, and UserError for malformed files.
    """
    folder, info = root / key, set_infos()[key]
    found = read_split(folder, key, "test")
    if found is None:
        raise MissingFilesError(
            f"expected {folder}/{info.files}, or {info.n_classes} plain folders {folder}/CLASS/IMAGE"
        )
    return finish(info, root, folder, found)


def read_split(folder: Path, key: str, split: SplitName) -> LabelledImages | None:
    """Read a split from the official files in a folder, or else from plain folders [SPLIT/]CLASS/IMAGE.

    None if neither is there. Raises UserError for malformed files.
    """
    if not folder.is_dir():
        return None
    found = READERS[key](folder, split)
    if found is not None:
        return found
    own = [folder / name for name in ((split, "valid") if split == "val" else (split,)) if (folder / name).is_dir()]
    is_divided = any((folder / name).is_dir() for name in ("train", "test"))
    if not own and is_divided:
        return None
    plain = read_class_folders(own[0] if own else folder, "plain folders", is_full=not own)
    return plain if plain.images and len(plain.classes) == set_infos()[key].n_classes else None
