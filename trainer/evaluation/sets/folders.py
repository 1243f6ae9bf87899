"""Data sets whose labels are folders, and CLEVR."""

from pathlib import Path
from typing import Final

from common.errors import UserError
from trainer.evaluation.annotations import field, read_json
from trainer.evaluation.sets.base import LabelledImages, SplitName, first_folder, indices_file, read_class_folders
from trainer.evaluation.tasks.base import ImageSource

CLEVR_COUNTS: Final = (10, 3, 4, 5, 6, 7, 8, 9)
"""Numbers of objects in the order of the labels of MERU's evaluation."""
CLEVR_IMAGES: Final = 5000


def read_imagenet(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """ImageNet: val/WNID/*.JPEG, its test split in the papers. The class is the rank of its WordNet id."""
    if split != "test" or not (folder / "val").is_dir():
        return None
    return read_class_folders(folder / "val", "official files")


def read_eurosat(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """EuroSAT: 2750/CLASS/*.jpg, 27,000 images without a split; `indices.txt` selects the papers' 5,000."""
    inner = first_folder(folder, "EuroSAT/2750", "2750", "EuroSAT_RGB")
    return None if inner == folder else read_class_folders(inner, "official files", is_full=True)


def read_resisc45(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """RESISC45: NWPU-RESISC45/CLASS/*.jpg, 31,500 images without a split; `indices.txt` selects the papers' 25,200."""
    inner = first_folder(folder, "NWPU-RESISC45")
    return None if inner == folder else read_class_folders(inner, "official files", is_full=True)


def read_country211(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """Country211: {train,valid,test}/CODE/*.jpg."""
    name = "valid" if split == "val" else split
    inner = first_folder(folder, f"country211/{name}", name)
    return None if inner == folder else read_class_folders(inner, "official files")


def read_sst2(folder: Path, split: SplitName = "test") -> LabelledImages | None:
    """Rendered SST2: {train,valid,test}/{negative,positive}."""
    name = "valid" if split == "val" else split
    inner = first_folder(folder, f"rendered-sst2/{name}", name)
    return None if inner == folder else read_class_folders(inner, "official files")


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
    return LabelledImages(images=images, targets=targets, classes=classes, files=[path], form="official files")
