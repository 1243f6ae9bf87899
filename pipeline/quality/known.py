"""Known boxes of an output's images: COCO annotations, or phrases with their boxes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from common.errors import UserError
from common.files import check_file
from common.text import one_line
from pipeline.quality.boxes import Corners, FoundRow

Words = frozenset[str]


@dataclass(frozen=True, kw_only=True)
class KnownObject:
    """A true box. A phrase refers to it if it covers `span` or contains one of `names`; both None or empty: any phrase.

    A crowd is a region with many objects: boxes in it are neither right nor wrong.
    """

    corners: Corners
    span: tuple[int, int] | None = None
    names: tuple[str, ...] = ()
    is_crowd: bool = False


@dataclass(frozen=True, kw_only=True)
class Known:
    """The true boxes of the images by row id, file name, or file name without extension."""

    source: str
    images: Mapping[str, Sequence[KnownObject]]
    captions: Mapping[str, str]

    def of(self, row: FoundRow) -> Sequence[KnownObject] | None:
        """Return the true boxes of a row; None if the file has no such image."""
        for name in names_of(row):
            if name in self.images:
                expected = self.captions.get(name)
                if expected is not None and expected != row.caption:
                    raise UserError(
                        f"{self.source}: the caption of image {name!r} is {expected[:80]!r}, but the output has "
                        f"{row.caption[:80]!r}; give the known boxes of this output"
                    )
                return self.images[name]
        return None


def names_of(row: FoundRow) -> list[str]:
    """Return the names by which a row is found: its id, then the file name of its URL with and without extension."""
    path = PurePosixPath(urlsplit(row.url).path) if row.url else None
    names = [row.id, *([path.name, path.stem] if path else [])]
    return [name for name in names if name]


def read_known(path: Path, synonyms: Mapping[str, Sequence[str]], *, any_phrase: bool = False) -> Known:
    """Read known boxes from a JSON file, whose form is recognised.

    `synonyms` gives further names of COCO's categories; with `any_phrase`, phrases and names are not compared. Raises
    UserError with file, entry and fix.
    """
    data = read_json(path)
    if isinstance(data, dict) and {"images", "annotations"} <= data.keys():
        return read_coco(path, data, synonyms, any_phrase)
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


def read_coco(path: Path, data: dict[str, Any], synonyms: Mapping[str, Sequence[str]], any_phrase: bool) -> Known:
    """Convert COCO's JSON; the boxes [x, y, width, height] are in pixels of the sizes given under `images`."""
    categories = {c.get("id"): str(c.get("name", "")) for c in data.get("categories", []) if isinstance(c, dict)}
    images: dict[str, list[KnownObject]] = {}
    sizes: dict[Any, tuple[float, float]] = {}
    lists: dict[Any, list[KnownObject]] = {}
    for number, image in enumerate(data["images"]):
        try:
            width, height = float(image["width"]), float(image["height"])
            if not (width > 0 and height > 0):
                raise ValueError
            sizes[image["id"]] = width, height
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: images[{number}] needs id, width and height above 0") from error
        found: list[KnownObject] = []
        lists[image["id"]] = found
        file = PurePosixPath(str(image.get("file_name", "")))
        images.update({name: found for name in (str(image["id"]), file.name, file.stem) if name})
    for number, annotation in enumerate(data["annotations"]):
        try:
            x, y, w, h = map(float, annotation["bbox"])
            width, height = sizes[annotation["image_id"]]
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path}: annotations[{number}] needs the image_id of an image and a bbox of 4 numbers"
            ) from error
        category = categories.get(annotation.get("category_id"), "")
        names = () if any_phrase else (category, *synonyms.get(category, ()))
        if not any_phrase and not category:
            raise UserError(f"{path}: annotations[{number}] has no category that `categories` names; pass --any-phrase")
        corners = (x / width, y / height, (x + w) / width, (y + h) / height)
        lists[annotation["image_id"]].append(
            KnownObject(corners=corners, names=names, is_crowd=bool(annotation.get("iscrowd")))
        )
    return Known(source=str(path), images=images, captions={})


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
            for phrase in entry["phrases"]:
                span = int(phrase.get("noun_start", phrase["start"])), int(phrase.get("noun_end", phrase["end"]))
                for box in phrase["boxes"]:
                    x0, y0, x1, y1 = map(float, box)
                    found.append(KnownObject(corners=(x0, y0, x1, y1), span=span))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{path}: row {row!r} needs phrases with start, end and boxes of 4 fractions each ({one_line(error)})"
            ) from error
    return Known(source=str(path), images=images, captions=captions)


def refers(row: FoundRow, span: tuple[int, int], known: KnownObject) -> bool:
    """True if the phrase [start, end) of a row refers to a known object."""
    if known.span is not None:
        return span[0] < known.span[1] and known.span[0] < span[1]
    return not known.names or any(contains(row.caption[span[0] : span[1]], name) for name in known.names)


def contains(phrase: str, name: str) -> bool:
    """True if a name, or its plural in "s" or "es", occurs in a phrase as whole words."""
    words = words_of(phrase)
    return any(form in words for form in forms_of(name))


@cache
def words_of(phrase: str) -> str:
    """Return the words of a phrase in lower case, each between spaces. Each of 26 thresholds asks for each phrase."""
    return f" {' '.join(''.join(c if c.isalnum() else ' ' for c in phrase.lower()).split())} "


@cache
def forms_of(name: str) -> tuple[str, ...]:
    """Return the singular and the plurals of a name between spaces."""
    name = name.lower().strip()
    plural = f"{name[:-1]}ies" if name.endswith("y") else name
    return tuple(f" {form} " for form in (name, f"{name}s", f"{name}es", plural))
