"""The known boxes of an output's images, and the phrases that refer to them."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from hypergrit_common.text import one_line
from pipeline.explore.quality.boxes import Corners, FoundRow
from pipeline.stages.parse.labels import singular_word


@dataclass(frozen=True, kw_only=True)
class KnownObject:
    """A true box. A phrase refers to it if it covers `span` or contains `name`; both None or empty: any phrase.

    A crowd is a region with many objects: boxes in it are neither right nor wrong.
    """

    corners: Corners
    span: tuple[int, int] | None = None
    name: str = ""
    is_crowd: bool = False


@dataclass(frozen=True, kw_only=True)
class Known:
    """The true boxes of the images by the id of the row, and by file name with or without its extension."""

    source: str
    ids: Mapping[str, Sequence[KnownObject]]
    files: Mapping[str, Sequence[KnownObject]]
    captions: Mapping[str, str]

    def of(self, row: FoundRow) -> Sequence[KnownObject] | None:
        """Return the true boxes of a row; None if the file has no such image."""
        path = PurePosixPath(urlsplit(row.url or "").path)
        places = ((row.id, self.ids), (row.id, self.files), (path.name, self.files), (path.stem, self.files))
        for name, images in places:
            if name and name in images:
                expected = self.captions.get(name)
                if expected is not None and expected != row.caption:
                    raise UserError(
                        f"{self.source}: the caption of image {name!r} is {expected[:80]!r}, but the output has "
                        f"{row.caption[:80]!r}; give the known boxes of this output"
                    )
                return images[name]
        return None


def refers(row: FoundRow, span: tuple[int, int], known: KnownObject) -> bool:
    """True if the phrase [start, end) of a row refers to a known object."""
    if known.span is not None:
        return span[0] < known.span[1] and known.span[0] < span[1]
    return not known.name or contains(row.caption[span[0] : span[1]], known.name)


def contains(phrase: str, name: str) -> bool:
    """True if a name, or its plural, occurs in a phrase as whole words."""
    as_written, in_singular = words_of(phrase)
    return any(form in as_written for form in forms_of(name)) or words_of(name)[1] in in_singular


@cache
def words_of(text: str) -> tuple[str, str]:
    """Return the words of a text in lower case between spaces, as they are and with each noun in the singular.

    Each of 26 thresholds asks for each phrase.
    """
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    return f" {' '.join(words)} ", f" {' '.join(map(singular_word, words))} "


@cache
def forms_of(name: str) -> tuple[str, ...]:
    """Return a name and its plurals between spaces, also of words that WordNet has in the plural, such as glasses."""
    name = words_of(name)[0].strip()
    plural = f"{name[:-1]}ies" if name.endswith("y") else name
    return tuple(f" {form} " for form in (name, f"{name}s", f"{name}es", plural))


# Read known boxes from a JSON file: COCO annotations, or phrases with their boxes.

BAD_ENTRY: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""Exceptions for values of another type or range than the form of the file has."""


def read_known(path: Path, *, any_phrase: bool = False) -> Known:
    """Read known boxes from a JSON file, whose form is recognised.

    With `any_phrase`, phrases and the names of COCO's categories are not compared. Raises UserError with file, entry and
    fix.
    """
    data = read_json(path)
    if isinstance(data, dict) and {"images", "annotations"} <= data.keys():
        return read_coco(path, data, any_phrase)
    if isinstance(data, dict) and data and all(isinstance(v, dict) and "phrases" in v for v in data.values()):
        return read_phrases(path, data)
    raise UserError(
        f"{path} holds no known boxes; give COCO's JSON (images, annotations, categories) or "
        '{"ROW ID": {"caption": ..., "phrases": [{"start": 0, "end": 5, "boxes": [[x0, y0, x1, y1]]}]}}'
    )


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises UserError if it is missing or damaged."""
    try:
        check_file(path)
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}; give a JSON file") from error


def read_coco(path: Path, data: dict[str, Any], any_phrase: bool) -> Known:
    """Convert COCO's JSON; the boxes [x, y, width, height] are in pixels of the sizes given under `images`.

    A file name that several images have finds none of them.
    """
    categories: dict[int | str, str] = {}
    for number, entry in enumerate(entries(path, data, "categories")):
        try:
            categories[identity(entry["id"])] = name_of(entry["name"])
        except BAD_ENTRY as error:
            raise UserError(f"{path}: categories[{number}] needs an id and a name") from error
    sizes: dict[int | str, tuple[float, float]] = {}
    ids, files = dict[str, list[KnownObject]](), defaultdict[str, list[list[KnownObject]]](list)
    for number, image in enumerate(entries(path, data, "images")):
        try:
            key, width, height = identity(image["id"]), finite(image["width"]), finite(image["height"])
            if not (width > 0 and height > 0):
                raise ValueError
            file = PurePosixPath(image.get("file_name") or "")
        except BAD_ENTRY as error:
            raise UserError(f"{path}: images[{number}] needs id, width and height above 0") from error
        if str(key) in ids:
            raise UserError(f"{path}: images[{number}] has the id {short(key)} of another image; give each its own")
        sizes[key], ids[str(key)] = (width, height), []
        for name in {file.name, file.stem}:
            files[name].append(ids[str(key)])
    for number, annotation in enumerate(entries(path, data, "annotations")):
        try:
            key = identity(annotation["image_id"])
            width, height = sizes[key]
            x, y, w, h = map(finite, list_of(annotation["bbox"]))
            if w < 0 or h < 0:
                raise ValueError
        except BAD_ENTRY as error:
            raise UserError(
                f"{path}: annotations[{number}] needs the image_id of an image and a bbox of 4 numbers, "
                "[x, y, width, height]"
            ) from error
        try:
            category = categories[identity(annotation["category_id"])]
        except BAD_ENTRY as error:
            if not any_phrase:
                raise UserError(
                    f"{path}: annotations[{number}] has no category that `categories` names; give any_phrase=true"
                ) from error
            category = ""
        corners = (x / width, y / height, (x + w) / width, (y + h) / height)
        name = "" if any_phrase else category
        ids[str(key)].append(KnownObject(corners=corners, name=name, is_crowd=bool(annotation.get("iscrowd"))))
    return Known(
        source=str(path),
        ids=ids,
        files={name: found[0] for name, found in files.items() if len(found) == 1},
        captions={},
    )


def read_phrases(path: Path, data: dict[str, Any]) -> Known:
    """Convert phrases with boxes, in fractions of width and height; the demo's truth.json has this form.

    `noun_start` and `noun_end`, if given, narrow the phrase to its noun, which a found phrase must cover.
    """
    images: dict[str, list[KnownObject]] = {}
    captions: dict[str, str] = {}
    for row, entry in data.items():
        found = images.setdefault(row, [])
        if isinstance(entry.get("caption"), str):
            captions[row] = entry["caption"]
        try:
            for phrase in list_of(entry["phrases"]):
                span = span_of(phrase, captions.get(row))
                found += [KnownObject(corners=corners_of(box), span=span) for box in list_of(phrase["boxes"])]
        except BAD_ENTRY as error:
            raise UserError(
                f"{path}: row {row!r} needs phrases with start, end and boxes of 4 fractions each ({one_line(error)})"
            ) from error
    return Known(source=str(path), ids=images, files=images, captions=captions)


def entries(path: Path, data: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list of COCO's JSON; an absent one is empty. Raises UserError if it is no list."""
    found = data.get(name, [])
    if not isinstance(found, list):
        raise UserError(f"{path}: `{name}` is no list; give COCO's JSON (images, annotations, categories)")
    return found


def list_of(value: Any) -> list[Any]:
    """Return a list. Raises TypeError for other types: a text is a sequence of digits, too."""
    if not isinstance(value, list):
        raise TypeError(f"{short(value)} is no list")
    return value


def identity(value: Any) -> int | str:
    """Return an id. Raises TypeError unless it is a whole number or a text."""
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise TypeError(f"{short(value)} is no id")
    return value


def name_of(value: Any) -> str:
    """Return the name of a category. Raises ValueError unless it is a text with a letter or digit."""
    if not isinstance(value, str) or not any(map(str.isalnum, value)):
        raise ValueError(f"{short(value)} is no name")
    return value


def finite(value: Any) -> float:
    """Return a number. Raises TypeError for other types, ValueError for NaN and infinity."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{short(value)} is no number")
    if not math.isfinite(value):
        raise ValueError(f"{value} is no finite number")
    return float(value)


def span_of(phrase: Mapping[str, Any], caption: str | None) -> tuple[int, int]:
    """Return the span [start, end) of a phrase or of its noun. Raises ValueError unless 0 <= start < end."""
    start, end = phrase["start"], phrase["end"]
    for first, last in ((start, end), (phrase.get("noun_start", start), phrase.get("noun_end", end))):
        begin, stop = int(finite(first)), int(finite(last))
        if not 0 <= begin < stop <= (stop if caption is None else len(caption)):
            raise ValueError(f"the span from {begin} to {stop} is not in the caption")
    return begin, stop


def corners_of(box: Any) -> Corners:
    """Return the corners of a box. Raises ValueError unless x0 <= x1 and y0 <= y1."""
    x0, y0, x1, y1 = map(finite, list_of(box))
    if x1 < x0 or y1 < y0:
        raise ValueError(f"{box} has its second corner above or left of the first one")
    return x0, y0, x1, y1


def short(value: Any) -> str:
    return repr(value)[:40]
