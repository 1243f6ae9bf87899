"""Data sets whose labels are folders, and CLEVR."""

from pathlib import Path
from typing import Final

from common.errors import UserError
from trainer.evaluation.annotations import field, read_json
from trainer.evaluation.sets.base import INDICES, LabelledImages, first_folder, read_class_folders
from trainer.evaluation.tasks.base import ImageSource

CLEVR_COUNTS: Final = (10, 3, 4, 5, 6, 7, 8, 9)
"""Numbers of objects in the order of the labels of MERU's evaluation."""
CLEVR_IMAGES: Final = 5000


def read_imagenet(folder: Path) -> LabelledImages | None:
    """ImageNet: val/WNID/*.JPEG. The class is the rank of its WordNet id."""
    if not (folder / "val").is_dir():
        return None
    return read_class_folders(folder / "val", "official files")


def read_eurosat(folder: Path) -> LabelledImages | None:
    """EuroSAT: 2750/CLASS/*.jpg, 27,000 images without a split; `indices.txt` selects the papers' 5,000."""
    inner = first_folder(folder, "EuroSAT/2750", "2750", "EuroSAT_RGB")
    return None if inner == folder else read_class_folders(inner, "official files", is_full=True)


def read_resisc45(folder: Path) -> LabelledImages | None:
    """RESISC45: NWPU-RESISC45/CLASS/*.jpg, 31,500 images without a split; `indices.txt` selects the papers' 25,200."""
    inner = first_folder(folder, "NWPU-RESISC45")
    return None if inner == folder else read_class_folders(inner, "official files", is_full=True)


def read_country211(folder: Path) -> LabelledImages | None:
    """Country211: test/CODE/*.jpg."""
    inner = first_folder(folder, "country211/test", "test")
    return None if inner == folder else read_class_folders(inner, "official files")


def read_sst2(folder: Path) -> LabelledImages | None:
    """Rendered SST2: test/negative and test/positive."""
    inner = first_folder(folder, "rendered-sst2/test", "test")
    return None if inner == folder else read_class_folders(inner, "official files")


def read_clevr(folder: Path) -> LabelledImages | None:
    """CLEVR: scenes/CLEVR_val_scenes.json and images/val/. The class is the number of objects.

    The first 5,000 scenes are used, in the order of the file, unless `indices.txt` selects others.
    """
    inner = first_folder(folder, "CLEVR_v1.0")
    path = inner / "scenes" / "CLEVR_val_scenes.json"
    if not path.is_file():
        return None
    images, targets = [], []
    scenes = field(read_json(path), "scenes", list, str(path))
    for number, scene in enumerate(scenes if (folder / INDICES).is_file() else scenes[:CLEVR_IMAGES]):
        where = f"{path}: scene {number}"
        count = len(field(scene, "objects", list, where))
        if count not in CLEVR_COUNTS:
            raise UserError(f"{where} has {count} objects; CLEVR has 3 to 10: download the file again")
        images.append(ImageSource(path=inner / "images" / "val" / field(scene, "image_filename", str, where)))
        targets.append(CLEVR_COUNTS.index(count))
    classes = [str(count) for count in CLEVR_COUNTS]
    return LabelledImages(images=images, targets=targets, classes=classes, files=[path], form="official files")
