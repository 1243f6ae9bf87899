"""Examples of a benchmark: lists of entries, and embedding of the images that they name.

Shapes: n examples, u distinct images, d embedding width.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from common.errors import UserError
from trainer.evaluation.annotations import check_text, read_json
from trainer.evaluation.tasks.base import Embedder, Fit, ImageSource, MissingFilesError

Item = TypeVar("Item", bound=Hashable)
Kind = TypeVar("Kind")

MISSING: Final = "missing image"
UNREADABLE: Final = "unreadable image"
MAX_PX: Final = 2**31


def require(root: Path, *paths: str) -> None:
    """Raise MissingFilesError that names the first of `paths` below `root` that does not exist."""
    for path in paths:
        if not (root / path).exists():
            raise MissingFilesError(f"{root / path} is missing; expected {', '.join(paths)} in {root}")


def read_list(path: Path) -> list[Any]:
    """Read a JSON file that holds a list. Raises UserError if it does not."""
    value = read_json(path)
    if not isinstance(value, list):
        raise UserError(f"{path} does not hold a list; download it again")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object. Raises UserError if it does not."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} does not hold an object; download it again")
    return value


def item(values: object, index: int, kind: type[Kind], where: str) -> Kind:
    """Return an item of a JSON list. Raises UserError, beginning with `where`, if it lacks such an item."""
    value = values[index] if isinstance(values, list) and index < len(values) else None
    if not isinstance(value, kind):
        raise UserError(f"{where}: item {index} is not of type {kind.__name__}; download the file again")
    check_text(value, f"{where}: item {index}")
    return value


def get_box(values: Any, where: str) -> tuple[float, float, float, float]:
    """Return four numbers below `MAX_PX`: left, top, width and height. Raises UserError, beginning with `where`."""
    # NaN is not smaller, and Python compares integers that no float can hold.
    numbers = isinstance(values, list) and all(
        isinstance(v, int | float) and not isinstance(v, bool) and -MAX_PX < v < MAX_PX for v in values
    )
    if not numbers or len(values) != 4:
        raise UserError(
            f"{where}: the box {f'{values}':.80} is not [left, top, width, height] in pixels; correct the entry"
        )
    left, top, width, height = map(float, values)
    return left, top, width, height


def is_file(path: Path) -> bool:
    """True for a file. A name that the file system refuses, such as a long one, is not that of a file."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def limited(items: Sequence[Kind], max_examples: int) -> Sequence[Kind]:
    """Return the first `max_examples` items; all if it is 0."""
    return items[:max_examples] if max_examples else items


def distinct(items: Sequence[Item]) -> tuple[list[Item], Tensor]:
    """Return the distinct items in order of appearance, and the position [n] of each item among them."""
    positions: dict[Item, int] = {}
    rows = [positions.setdefault(item, len(positions)) for item in items]
    return list(positions), torch.tensor(rows, dtype=torch.long)


@dataclass(frozen=True, kw_only=True)
class EmbeddedImages:
    """Features [u d] of the usable images, the row [n] of each example (-1: unusable), and the reasons by example."""

    features: Tensor
    rows: Tensor
    reasons: Mapping[int, str]

    @property
    def usable(self) -> Tensor:
        """Indices of the examples that have features."""
        return (self.rows >= 0).nonzero().squeeze(1)

    def skipped(self) -> dict[str, int]:
        """Number of unusable examples by reason."""
        return dict(Counter(self.reasons.values()))


def embed_sources(
    embedder: Embedder,
    sources: Sequence[ImageSource],
    fit: Fit = "crop",
    *,
    legacy_norm: bool = False,
    trunk: bool = False,
    required: bool = True,
) -> EmbeddedImages:
    """Embed the images of n examples, each distinct image once.

    Files that do not exist are not passed to the embedder. Raises MissingFilesError if no image is usable, unless
    `required` is false.
    """
    images, position = distinct(sources)
    exists = {path: is_file(path) for path in {image.path for image in images}}
    present = [i for i, image in enumerate(images) if exists[image.path]]
    reasons = {i: MISSING for i, image in enumerate(images) if not exists[image.path]}
    found = embedder.images([images[i] for i in present], fit, legacy_norm=legacy_norm, trunk=trunk)
    reasons |= {present[row]: UNREADABLE for row in found.errors}
    row_of = torch.full((len(images),), -1)
    readable = [row for row in range(len(present)) if row not in found.errors]
    row_of[[present[row] for row in readable]] = torch.tensor(readable, dtype=torch.long)
    if required and not readable:
        example = images[0].path if images else "(none)"
        raise MissingFilesError(f"none of the {len(images)} images is usable, such as {example}; download the images")
    return EmbeddedImages(
        features=found.features,
        rows=row_of[position],
        reasons={n: reasons[i] for n, i in enumerate(position.tolist()) if i in reasons},
    )
