"""Samples as the trainer uses them, and the files that they are read from.

A sample is a group of adjacent tar members with a common key. Texts are decoded when they are read, images only when
they are cropped.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from hypergrit_common.images import ImageRejected
from hypergrit_common.tar import TarError
from trainer.data.crops import EncodedImage, Region
from trainer.data.index import sample_members
from trainer.text.syntax import Word

Reason = Literal[
    "damaged",
    "duplicate_key",
    "missing_member",
    "undecodable_image",
    "bad_json",
    "no_caption",
    "no_boxes",
    "no_parse",
    "no_levels",
    "too_large",
]


class BadSample(Exception):  # noqa: N818 (a property of the input, not an error of the program)
    """A sample that cannot be used for training. Such samples are counted by `reason`."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box of a sample: its phrase, and either an image file of the box or a region of the sample's image."""

    phrase: str
    image: bytes | None = None  # encoded; None: the box is `region` of the sample's image
    region: Region | None = None  # in pixels of the full-resolution image
    hard_negatives: tuple[str, ...] = ()  # texts like the phrase that are not true of the box; read only if needed


@dataclass(frozen=True, kw_only=True)
class Caption:
    """One of several captions of a sample. `words` is read only if the model needs it."""

    kind: str
    text: str
    words: tuple[Word, ...] | None = None  # parse of the text


@dataclass(frozen=True, kw_only=True)
class Sample:
    """An image with its caption. `boxes`, `words` and `captions` are read only if they are needed."""

    key: str
    image: EncodedImage
    caption: str
    boxes: tuple[Box, ...] = ()
    words: tuple[Word, ...] | None = None  # parse of the caption
    captions: tuple[Caption, ...] = ()  # if there are several, the first of which is `caption`
    levels: tuple[str | None, ...] = ()  # labels of a taxonomy by depth, from general to specific; None: unknown
    subreddit: str | None = None
    # Centre image and boxes on white squares before cropping, as HyCoCLIP's conversion of GRIT does.
    pad_to_square: bool = False


class SampleFiles:
    """The files of a sample by lower-case extension. Raises BadSample if the bytes are not part of a tar."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.ranges: dict[str, tuple[int, int]] = {}  # extension -> offset and size
        self.key = ""
        try:
            for key, extension, offset, size in sample_members(data):
                self.key = self.key or key
                if key != self.key:
                    raise BadSample("damaged", f"the index does not fit the tar: the sample has files of {key} too")
                if extension.lower() in self.ranges:
                    raise BadSample("duplicate_key", f"two adjacent samples share this key: each has a {extension}")
                self.ranges[extension.lower()] = offset, size
        except TarError as error:
            raise BadSample("damaged", str(error)) from error
        if not self.key:
            raise BadSample("damaged", "the tar has no member at the offset in the index")

    def __contains__(self, name: str) -> bool:
        return name in self.ranges

    def __getitem__(self, name: str) -> bytes:
        if name not in self.ranges:
            raise BadSample("missing_member", f"the sample has no {name}, only {', '.join(sorted(self.ranges))}")
        offset, size = self.ranges[name]
        return self.data[offset : offset + size]

    def text(self, name: str) -> str:
        """Decode a file as UTF-8. Raises BadSample if it does not exist."""
        return self[name].decode("utf-8", "replace")

    def json(self, name: str) -> dict[str, Any]:
        """Parse a file as a JSON object. Raises BadSample if it does not exist or is not a JSON object."""
        try:
            value = json.loads(self[name])
        except (ValueError, RecursionError) as error:
            raise BadSample("bad_json", str(error)) from error
        if not isinstance(value, dict):
            raise BadSample("bad_json", "the JSON is not an object")
        return value


def open_image(data: bytes) -> EncodedImage:
    """Wrap an encoded image. Raises BadSample if it is not a usable image."""
    try:
        return EncodedImage(data)
    except ImageRejected as error:
        raise BadSample("undecodable_image", str(error)) from error


def sample_key(data: bytes) -> str:
    """Return the key of a sample, for messages; if it is damaged, an approximation from its first bytes."""
    with suppress(TarError):
        for member in sample_members(data):
            return member.key
    return data[:100].split(b"\0", 1)[0].decode("utf-8", "replace").split(".", 1)[0]
