"""What a sample is, in each of the layouts it comes in. Bytes come from a span of a tar; nothing is decoded here but text.

train, hycoclip   child.jpg, child.txt, numparents.txt, parent000.jpg, parent000.txt, ...; in ours a json besides
grit              jpg and json with `caption`, and `noun_chunks` and `ref_exps`: lists of
                  [start, end, x_min, y_min, x_max, y_max, score], corners as fractions
pairs             jpg, and txt or a json with `caption`, perhaps with `subreddit` (RedCaps)
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

from common.images import ImageRejected
from trainer.data.config import Layout
from trainer.data.crops import Picture, Region
from trainer.data.index import members
from trainer.data.tar import TarError
from trainer.text.syntax import Word, read_words

Reason = Literal["damaged", "missing_member", "undecodable_image", "bad_json", "no_caption", "no_boxes", "no_parse"]

MIN_BOX_AREA_PX: Final = 32 * 32  # HyCoCLIP's conversion of GRIT keeps what is larger


class BadSample(Exception):  # noqa: N818 (a verdict on the input, no error of the program)
    """A sample that cannot be trained on."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason


@dataclass(frozen=True, kw_only=True)
class Box:
    """A part of an image and the phrase that it shows."""

    phrase: str
    image: bytes | None = None  # encoded; None: a part of the sample's own
    region: Region | None = None  # that part, in pixels of the image as it is stored


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One image with its caption. `boxes` and `words` are read if they are needed."""

    key: str
    picture: Picture
    caption: str
    boxes: tuple[Box, ...] = ()
    words: tuple[Word, ...] | None = None  # parse of the caption
    subreddit: str | None = None
    on_square: bool = False  # image and boxes are to be laid on white squares, as HyCoCLIP's conversion does


class Members:
    """The files of one sample, by extension."""

    def __init__(self, span: bytes) -> None:
        self.span = span
        self.places: dict[str, tuple[int, int]] = {}
        self.key = ""
        try:
            for key, extension, start, size in members(span):
                self.key = self.key or key
                self.places[extension.lower()] = start, size
        except TarError as error:
            raise BadSample("damaged", str(error)) from error
        if not self.key:
            raise BadSample("damaged", "no tar member where one was")

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def __getitem__(self, name: str) -> bytes:
        if name not in self.places:
            raise BadSample("missing_member", f"there is no {name} (but {', '.join(sorted(self.places))})")
        start, size = self.places[name]
        return self.span[start : start + size]

    def text(self, name: str) -> str:
        return self[name].decode("utf-8", "replace")

    def json(self) -> dict[str, Any]:
        try:
            value = json.loads(self["json"])
        except (ValueError, RecursionError) as error:
            raise BadSample("bad_json", str(error)) from error
        if not isinstance(value, dict):
            raise BadSample("bad_json", "not an object")
        return value


def find_layout(span: bytes) -> Layout:
    """What the members of a sample look like. Raises BadSample for none of the layouts."""
    sample = Members(span)
    if "child.jpg" in sample:
        return "train" if "json" in sample else "hycoclip"
    image_of(sample)  # says what there is instead
    if "json" in sample and "noun_chunks" in sample.json():
        return "grit"
    if "txt" in sample or "json" in sample:
        return "pairs"
    raise BadSample("missing_member", "there is an image but neither txt nor json")


def read_sample(span: bytes, layout: Layout, needs: frozenset[str]) -> Sample:
    """Raises BadSample, also where something is missing that is needed."""
    read: Callable[[Members, frozenset[str]], Sample]
    match layout:
        case "train" | "hycoclip":
            read = read_train
        case "grit":
            read = read_grit
        case "pairs":
            read = read_pair
    sample = read(Members(span), needs)
    if "boxes" in needs and not sample.boxes:
        raise BadSample("no_boxes", "the sample has no boxes")
    if "parse" in needs and sample.words is None:
        raise BadSample("no_parse", "the sample has no parse of its caption")
    return sample


def read_train(files: Members, needs: frozenset[str]) -> Sample:
    caption = required(files.text("child.txt"))
    return Sample(
        key=files.key,
        picture=open_picture(files["child.jpg"]),
        caption=caption,
        boxes=tuple(parents(files)) if "boxes" in needs else (),
        words=parse_of(files.json(), caption) if "parse" in needs and "json" in files else None,
    )


def parents(files: Members) -> Iterator[Box]:
    """HyCoCLIP's parents, numbered from 0; those without a phrase are left out."""
    number = files.text("numparents.txt").strip()
    if not number.isdigit() or len(number) > 4:
        raise BadSample("missing_member", f"numparents.txt holds {number[:20]!r}, not a number")
    for index in range(int(number)):
        phrase = files.text(f"parent{index:03d}.txt")
        if phrase.strip():
            yield Box(phrase=phrase, image=files[f"parent{index:03d}.jpg"])


def parse_of(fields: dict[str, Any], caption: str) -> tuple[Word, ...] | None:
    """The words of our JSON's `tokens`, None if it has none."""
    tokens = fields.get("tokens")
    if not tokens:
        return None
    if not isinstance(tokens, list) or fields.get("caption", caption) != caption:
        raise BadSample("no_parse", "the JSON's parse is of another caption")
    try:
        return tuple(read_words(tokens, caption))
    except ValueError as error:
        raise BadSample("no_parse", str(error)) from error


def read_grit(files: Members, needs: frozenset[str]) -> Sample:
    fields = files.json()
    caption = required(fields.get("caption"))
    picture = open_picture(image_of(files))
    return Sample(
        key=files.key,
        picture=picture,
        caption=caption,
        boxes=tuple(grit_boxes(fields, caption, picture)) if "boxes" in needs else (),
        words=parse_of(fields, caption) if "parse" in needs else None,
        on_square=True,
    )


def grit_boxes(fields: dict[str, Any], caption: str, picture: Picture) -> Iterator[Box]:
    """As HyCoCLIP's conversion: noun chunks, then referring expressions; of each text the first alone, even if its box
    is too small to keep."""
    seen: set[str] = set()
    for name in ("noun_chunks", "ref_exps"):
        rows = fields.get(name) or ()
        try:
            for start, end, *corners in (row[:6] for row in rows):
                phrase = caption[int(start) : int(end)]
                if phrase in seen:
                    continue
                seen.add(phrase)
                x_min, y_min, x_max, y_max = (min(max(float(corner), 0.0), 1.0) for corner in corners)
                left, right = int(x_min * picture.width), int(x_max * picture.width)
                top, bottom = int(y_min * picture.height), int(y_max * picture.height)
                region = Region(left, top, max(right - left, 0), max(bottom - top, 0))
                if region.width * region.height > MIN_BOX_AREA_PX and phrase.strip():
                    yield Box(phrase=phrase, region=region)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadSample("bad_json", f"{name}: {error}; a row is [start, end, x1, y1, x2, y2, score]") from error


def read_pair(files: Members, needs: frozenset[str]) -> Sample:
    fields = files.json() if "json" in files else {}
    caption = required(files.text("txt") if "txt" in files else fields.get("caption"))
    subreddit = fields.get("subreddit")
    return Sample(
        key=files.key,
        picture=open_picture(image_of(files)),
        caption=caption,
        words=parse_of(fields, caption) if "parse" in needs else None,
        subreddit=subreddit if isinstance(subreddit, str) and subreddit else None,
    )


def image_of(files: Members) -> bytes:
    return next((files[name] for name in ("jpg", "jpeg", "png", "webp") if name in files), None) or files["jpg"]


def open_picture(data: bytes) -> Picture:
    try:
        return Picture(data)
    except ImageRejected as error:
        raise BadSample("undecodable_image", str(error)) from error


def required(caption: object) -> str:
    if not isinstance(caption, str) or not caption.strip():
        raise BadSample("no_caption", "the caption is empty, or there is none")
    return caption


def key_of(span: bytes) -> str:
    """The key of a sample that may be damaged, for messages; what its first bytes say where no member is whole."""
    with suppress(TarError):
        for key, *_ in members(span):
            return key
    return span[:100].split(b"\0", 1)[0].decode("utf-8", "replace").split(".", 1)[0]
