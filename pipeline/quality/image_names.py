"""The names by which the images of a file of known boxes are found."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Generic, TypeVar

Image = TypeVar("Image")


@dataclass(frozen=True, kw_only=True)
class ImageNames(Generic[Image]):
    """Name -> image. A `shadowed` name belongs to one image as id (or file name), and to another as file name or stem.

    `ambiguous` names belong to several images and find none.
    """

    images: dict[str, Image]
    shadowed: frozenset[str]
    ambiguous: frozenset[str]


def image_names(images: Sequence[tuple[str, str, Image]]) -> ImageNames[Image]:
    """Index images, given as (id, file name or "", image), by id, then by file name, then by its stem.

    A folder in the file name is ignored. A name of several images of one kind is ambiguous, unless it is the id of one.
    """
    found: dict[str, Image] = {}
    shadowed: set[str] = set()
    ambiguous: set[str] = set()
    paths = [PurePosixPath(file) for _, file, _ in images]
    for names in ([id_ for id_, _, _ in images], [path.name for path in paths], [path.stem for path in paths]):
        of_name: defaultdict[str, list[Image]] = defaultdict(list)
        for name, (_, _, image) in zip(names, images, strict=True):
            if name:
                of_name[name].append(image)
        for name, same in of_name.items():
            if name in found:
                shadowed.update({name} if any(image is not found[name] for image in same) else ())
            elif len(same) == 1 and name not in ambiguous:
                found[name] = same[0]
            else:
                ambiguous.add(name)
    return ImageNames(images=found, shadowed=frozenset(shadowed), ambiguous=frozenset(ambiguous))
