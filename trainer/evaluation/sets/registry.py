"""The readers of the 20 data sets, and their layouts below the data folder."""

from pathlib import Path
from typing import Final

from trainer.evaluation.sets import lists as folders
from trainer.evaluation.sets import lists as matlab
from trainer.evaluation.sets import lists as text_lists
from trainer.evaluation.sets import packed
from trainer.evaluation.sets.base import (
    LabelledImages,
    Reader,
    SplitName,
    ZeroShotSet,
    finish,
    read_class_folders,
    set_infos,
)
from trainer.evaluation.task import MissingFilesError

READERS: Final[dict[str, tuple[Reader, str]]] = {
    "imagenet": (folders.read_imagenet, "val/WNID/*.JPEG"),
    "food101": (text_lists.read_food101, "food-101/{meta/test.txt,meta/classes.txt,images/CLASS/ID.jpg}"),
    "cifar10": (packed.read_cifar10, "cifar-10-batches-bin/{test_batch.bin,batches.meta.txt}"),
    "cifar100": (packed.read_cifar100, "cifar-100-binary/{test.bin,fine_label_names.txt}"),
    "cub2011": (
        text_lists.read_cub,
        "CUB_200_2011/{images,image_class_labels,train_test_split,classes}.txt and images/",
    ),
    "sun397": (text_lists.read_sun397, "SUN397/{ClassName.txt,test.txt or Testing_01.txt,a/abbey/*.jpg}"),
    "cars": (matlab.read_cars, "{devkit/cars_meta.mat,cars_test_annos_withlabels.mat,cars_test/*.jpg}"),
    "aircraft": (
        text_lists.read_aircraft,
        "fgvc-aircraft-2013b/data/{images_variant_test.txt,variants.txt,images/ID.jpg}",
    ),
    "dtd": (text_lists.read_dtd, "dtd/{labels/test1.txt,images/CLASS/IMAGE.jpg}"),
    "pets": (text_lists.read_pets, "oxford-iiit-pet/{annotations/test.txt,images/NAME.jpg}"),
    "caltech101": (text_lists.read_caltech101, "{test.txt,101_ObjectCategories/CLASS/IMAGE.jpg}"),
    "flowers102": (matlab.read_flowers102, "flowers-102/{setid.mat,imagelabels.mat,jpg/image_00001.jpg}"),
    "stl10": (packed.read_stl10, "stl10_binary/{test_X.bin,test_y.bin,class_names.txt}"),
    "eurosat": (folders.read_eurosat, "2750/CLASS/*.jpg and indices.txt"),
    "resisc45": (folders.read_resisc45, "NWPU-RESISC45/CLASS/*.jpg and indices.txt"),
    "country211": (folders.read_country211, "test/CODE/*.jpg and classnames.txt"),
    "mnist": (packed.read_mnist, "MNIST/raw/{t10k-images-idx3-ubyte,t10k-labels-idx1-ubyte}[.gz]"),
    "clevr": (folders.read_clevr, "CLEVR_v1.0/{scenes/CLEVR_val_scenes.json,images/val/*.png}"),
    "pcam": (packed.read_pcam, "camelyonpatch_level_2_split_test_{x,y}.h5 and classnames.txt"),
    "sst2": (folders.read_sst2, "rendered-sst2/test/{negative,positive}/*.png"),
}
"""Reader of the official files of each data set, and these files below DATA/KEY."""


def read_set(root: Path, key: str) -> ZeroShotSet:
    """Read the test images of a data set, with class names and prompts.

    Raises MissingFilesError, naming the layouts, without files, and UserError for malformed files.
    """
    folder, info = root / key, set_infos()[key]
    found = read_split(folder, key, "test")
    if found is None:
        raise MissingFilesError(
            f"expected {folder}/{READERS[key][1]}, or {info.n_classes} plain folders {folder}/CLASS/IMAGE"
        )
    return finish(info, root, folder, found)


def read_split(folder: Path, key: str, split: SplitName) -> LabelledImages | None:
    """Read a split from the official files in a folder, or else from plain folders [SPLIT/]CLASS/IMAGE.

    None if neither is there. Raises UserError for malformed files.
    """
    if not folder.is_dir():
        return None
    found = READERS[key][0](folder, split)
    if found is not None:
        return found
    own = [folder / name for name in ((split, "valid") if split == "val" else (split,)) if (folder / name).is_dir()]
    is_divided = any((folder / name).is_dir() for name in ("train", "test"))
    if not own and is_divided:
        return None
    plain = read_class_folders(own[0] if own else folder, "plain folders", is_full=not own)
    return plain if plain.images and len(plain.classes) == set_infos()[key].n_classes else None
