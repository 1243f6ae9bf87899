"""Image classification on data sets of one's own: ROOT/own/NAME/CLASS/IMAGE.

classnames.txt   names of the classes, one per line in the order of the folders; default: the names of the folders
prompts.txt      prompts, one per line, with {} in place of the class name; default: a photo of a {}.
tree.txt         lines `child parent name` whose leaves are the folders, for the hierarchical metrics; the root has
                 the parent "-", and every node has its own line
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from common.errors import UserError
from trainer.evaluation.annotations import checksums, read_lines
from trainer.evaluation.sets.base import SetInfo, ZeroShotSet, finish, read_class_folders, set_infos

FOLDER: Final = "own"
PROMPTS: Final = "prompts.txt"
TREE: Final = "tree.txt"
DEFAULT_PROMPTS: Final = ("a photo of a {}.",)


def own_sets(root: Path) -> list[str]:
    """The names of the data sets in ROOT/own, sorted. Raises UserError for the name of a known data set."""
    folder = root / FOLDER
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    taken = next((name for name in names if name in set_infos()), None)
    if taken is not None:
        raise UserError(f"{folder / taken} has the name of a known data set; rename the folder")
    return names


def read_own_set(root: Path, name: str) -> ZeroShotSet:
    """Read the images, class names and prompts of ROOT/own/NAME. Raises UserError for malformed files."""
    folder = root / FOLDER / name
    found = read_class_folders(folder, "plain folders")
    prompts = tuple(read_lines(folder / PROMPTS)) if (folder / PROMPTS).is_file() else DEFAULT_PROMPTS
    if not prompts or any("{}" not in prompt for prompt in prompts):
        raise UserError(f"{folder / PROMPTS}: each line needs {{}} in place of the class name; correct the file")
    n_images = len(found.images)
    info = SetInfo(key=name, n_classes=len(found.classes), n_images=n_images, n_train=0, n_val=0, prompts=prompts)
    data = finish(info, root, folder, found)
    files = [folder / file for file in (PROMPTS, TREE) if (folder / file).is_file()]
    return replace(
        data,
        rules=data.rules | {"prompts": PROMPTS if (folder / PROMPTS).is_file() else DEFAULT_PROMPTS[0]},
        checksums=data.checksums | checksums(root, *files),
    )
