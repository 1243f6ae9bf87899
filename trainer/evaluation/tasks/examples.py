"""Examples of a benchmark: lists of entries, and embedding of the images that they name.

Shapes: n examples, u distinct images, d embedding width.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from hypergrit_common.urls import safe_message
from trainer.evaluation.embed import device_of
from trainer.evaluation.sets.annotations import check_text, read_json, record_once, shown
from trainer.evaluation.sets.annotations import field as value_of
from trainer.evaluation.task import Embedder, Figure, Fit, ImageSource, MissingFilesError, TaskResult

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


def read_kind(path: Path, kind: type[Kind]) -> Kind:
    """Read a JSON file that holds a list or an object (dict). Raises UserError if it does not."""
    value = read_json(path)
    if not isinstance(value, kind):
        raise UserError(f"{path} does not hold {'a list' if kind is list else 'an object'}; download it again")
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


@torch.no_grad()
def lift_texts(embedder: Embedder, texts: Sequence[str]) -> Tensor:
    """Lifted points [*k n d] of texts, on the device of the model."""
    return embedder.model.lift_text(embedder.texts(texts).to(device_of(embedder.model)))


# Tasks of several data sets or files: one that is missing or malformed does not stop the others.

Entry = TypeVar("Entry")
Parsed = TypeVar("Parsed")

MAX_MALFORMED: Final = 0.01
"""Share of the entries of a file above which the file is malformed. A file of fewer than 100 entries must have none."""
MAX_NAMED: Final = 5
"""Malformed entries of a file that a result names; it counts all of them."""


@dataclass(frozen=True)
class Problems:
    """The reason for each part of a task that was not evaluated, by the name of the part."""

    missing: dict[str, str] = field(default_factory=dict)
    malformed: dict[str, str] = field(default_factory=dict)
    """Also the first `MAX_NAMED` malformed entries of each file."""
    skipped: Counter[str] = field(default_factory=Counter)
    """The number of malformed entries, for `TaskResult.skipped`."""

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Record a MissingFilesError or UserError of the block under `name`, and continue after the block."""
        try:
            yield
        except MissingFilesError as error:
            self.missing[name] = safe_message(str(error))
        except UserError as error:
            self.malformed[name] = safe_message(str(error))

    def entries(
        self, path: Path, entries: Iterable[Entry], parse: Callable[[Entry], Parsed], name: str = ""
    ) -> list[Parsed]:
        """Parse the entries of a file, and record those for which `parse` raises UserError.

        `name` tells lists of the same file, or files of the same name, apart; by default it is that of the file.
        Raises the first of these errors if they are more than `MAX_MALFORMED` of the entries.
        """
        found: list[Parsed] = []
        errors: dict[str, UserError] = {}
        for number, entry in enumerate(entries):
            try:
                found.append(parse(entry))
            except UserError as error:
                errors[f"{name or path.name}, item {number}"] = error
        if len(errors) > MAX_MALFORMED * (len(found) + len(errors)):
            raise next(iter(errors.values()))
        self.malformed.update({key: safe_message(str(error)) for key, error in list(errors.items())[:MAX_NAMED]})
        self.skipped.update({f"malformed entry of {name or path.name}": len(errors)} if errors else {})
        return found

    def require(self, found: object, expected: str) -> None:
        """Raise if `found` is empty: UserError if a part is malformed, else MissingFilesError with `expected`."""
        if found:
            return
        if self.malformed:
            raise UserError("; ".join(self.malformed.values()))
        raise MissingFilesError(expected)

    def details(self) -> dict[str, object]:
        """The entries of `TaskResult.details`."""
        return {"missing": self.missing, "malformed": self.malformed}


def merge(parts: Mapping[str, TaskResult], problems: Problems, figures: Sequence[Figure] = ()) -> TaskResult:
    """Join the results of data sets, with the names of the sets before those of the metrics; none for the name "".

    `figures` come before those of the parts.
    """
    named = [(f"{key}/" if key else "", part) for key, part in parts.items()]
    return TaskResult(
        metrics={prefix + name: value for prefix, part in named for name, value in part.metrics.items()},
        chance={prefix + name: value for prefix, part in named for name, value in part.chance.items()},
        rules={prefix + name: rule for prefix, part in named for name, rule in part.rules.items()},
        n_used=sum(part.n_used for part in parts.values()),
        skipped={f"{key}: {why}" if key else why: n for key, part in parts.items() for why, n in part.skipped.items()}
        | problems.skipped,
        checksums={path: value for part in parts.values() for path, value in part.checksums.items()},
        details=problems.details()
        | dict(parts[""].details if "" in parts else {})
        | {key: dict(part.details) for key, part in parts.items() if key},
        figures=[*figures, *(figure for part in parts.values() for figure in part.figures)],
        items={prefix + name: items for prefix, part in named for name, items in part.items.items()},
    )


# The tables of the files of COCO, by id.


def coco_names(path: Path, table: object, problems: Problems) -> dict[int, str]:
    """The names of the categories."""
    names: dict[int, str] = {}

    def read(row: Any) -> None:
        where = f"{path}, category {label(row)}"
        record_once(names, value_of(row, "id", int, where), value_of(row, "name", str, where), where)

    problems.entries(path, value_of(table, "categories", list, str(path)), read, f"{path.name}/categories")
    return names


def coco_images(
    path: Path, table: object, folder: Path, problems: Problems, *keys: str
) -> dict[int, tuple[ImageSource, tuple[int, ...]]]:
    """The images in `folder`, each with the values of these keys."""
    images: dict[int, tuple[ImageSource, tuple[int, ...]]] = {}

    def read(row: Any) -> None:
        where = f"{path}, image {label(row)}"
        number, name = value_of(row, "id", int, where), value_of(row, "file_name", str, where)
        urls = tuple(row[key] for key in ("coco_url", "flickr_url") if isinstance(row.get(key), str))
        values = tuple(value_of(row, key, int, where) for key in keys)
        record_once(images, number, (ImageSource(path=folder / name, urls=urls), values), where)

    problems.entries(path, value_of(table, "images", list, str(path)), read, f"{path.name}/images")
    return images


def label(row: Any) -> str:
    """The id of an entry, or the entry itself where it has none, in at most 40 characters."""
    return shown(row.get("id") if isinstance(row, dict) else row)
