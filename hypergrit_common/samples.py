"""Samples of shards, and the files that they are read from.

A sample is a group of adjacent tar members with a common key. Texts are decoded when they are read, images only when
they are cropped.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import cv2

from hypergrit_common.image_codec import JPEG_END, REDUCTIONS
from hypergrit_common.image_header import JPEG_START, SIMPLE_FRAMES, CostlyImageError, JpegHeader, read_jpeg_header
from hypergrit_common.images import Image, ImageLimits, ImageRejected, check_header, decode, decode_jpeg
from hypergrit_common.tar import TarError, iter_members

MEMBER: Final = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)")
"""Key and extension of a member, as in webdataset: the key ends at the first dot after the last slash."""


class SampleMember(NamedTuple):
    """A file of a sample; `offset` is that of its content, in the bytes of the sample."""

    key: str
    extension: str
    offset: int
    size: int


def sample_members(data: bytes) -> Iterator[SampleMember]:
    """Yield the files in the bytes of a sample. Raises TarError if they are truncated or not part of a tar."""
    for member in iter_members(lambda offset, length: data[offset : offset + length], 0, len(data), verify=False):
        match = MEMBER.fullmatch(member.name)
        if match is not None:
            yield SampleMember(match[1], match[2], member.data_offset, member.size)


LIMITS: Final = ImageLimits(max_pixels=100_000_000, max_aspect_ratio=math.inf)


class Region(NamedTuple):
    """A rectangular region of an image, in whole pixels."""

    x: int  # left edge
    y: int  # top edge
    width: int
    height: int


def read_plain_jpeg(data: bytes) -> JpegHeader | None:
    """Read the header of a JPEG that needs no conversion.

    Returns None if the bytes are not a complete JPEG, if they contain Exif data, which may rotate the image, or if the
    colours are CMYK.
    """
    if not data.startswith(JPEG_START) or not data.endswith(JPEG_END):
        return None
    try:
        header = read_jpeg_header(data)
    except CostlyImageError:
        return None  # `decode` refuses it
    if header is None or header.frame not in SIMPLE_FRAMES or header.n_channels not in (1, 3) or header.has_exif:
        return None
    return header


class EncodedImage:
    """An encoded image whose pixels are decoded on demand. Raises ImageRejected if the bytes are not a usable image."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.header = read_plain_jpeg(data)
        self.pixels: Image | None = None  # set here if the size is known only after decoding
        if self.header is not None:
            self.width, self.height = self.header.width, self.header.height
        else:
            self.pixels = decode(data, LIMITS)
            self.height, self.width = self.pixels.shape[:2]
        check_header(self.width, self.height, LIMITS)

    @property
    def full_region(self) -> Region:
        """The region that covers the full image."""
        return Region(0, 0, self.width, self.height)

    def decode(self, factor: int) -> Image:
        """Decode to RGB at 1 / factor, with sides rounded up and Exif rotation applied.

        Raises ImageRejected if the image is damaged.
        """
        if self.header is None:
            assert self.pixels is not None, "decoded when it was read"
            return self.pixels
        pixels = decode_jpeg(self.data, self.header, REDUCTIONS[factor] | cv2.IMREAD_COLOR_RGB, LIMITS)
        if pixels.shape[:2] != (-(-self.height // factor), -(-self.width // factor)):
            raise ImageRejected("undecodable", "broken JPEG")
        return pixels


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of a parse, as the parser returns it."""

    start: int  # first character in the caption
    end: int  # one past the last character
    head: int  # index of the head among the words; that of the word itself for a root
    dep: str  # dependency label of the edge to the head


def read_words(tokens: Sequence[Mapping[str, Any]], caption: str) -> list[Word]:
    """Read the parse in a sample's JSON (schemas.rows.TOKEN).

    Raises ValueError, naming the word, if it is not a valid parse of `caption`.
    """
    words, previous_end = [], 0
    for index, token in enumerate(tokens):
        try:
            start, end, head, dep = token["start"], token["end"], token["head"], token["dep"]
        except (KeyError, TypeError) as error:
            problem = f"has no {error}" if isinstance(error, KeyError) else "is not an object"
            raise ValueError(f"tokens[{index}] {problem}; it needs start, end, head and dep") from error
        if not all(type(value) is int for value in (start, end, head)) or not isinstance(dep, str):
            raise ValueError(f"tokens[{index}]: start, end and head must be integers, and dep a string")
        if not previous_end <= start <= end <= len(caption):
            raise ValueError(
                f"tokens[{index}] has the span [{start}, {end}) in a caption of {len(caption)} characters, "
                f"after a token that ends at {previous_end}: not a parse of this caption"
            )
        if not 0 <= head < len(tokens):
            raise ValueError(f"tokens[{index}] has head {head}, but there are {len(tokens)} words")
        words.append(Word(start=start, end=end, head=head, dep=dep))
        previous_end = end
    return words


Reason = Literal[
    "damaged",
    "duplicate_key",
    "missing_member",
    "undecodable_image",
    "bad_json",
    "not_utf8",
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


MIN_BAD: Final = 64  # bad samples of a process before their share counts
MAX_LOGGED: Final = 5  # every bad sample up to this number is logged; after it, only the 8th, 16th, 32nd, ...
MAX_SAMPLE_BYTES: Final = 64 << 20
"""Larger samples are not read, since a batch of them would need all memory."""


def is_logged(number: int) -> bool:
    """Return True for the numbers of the bad samples that are logged."""
    return number <= MAX_LOGGED or number & (number - 1) == 0


def too_many_bad(counts: Mapping[str, int], n_read: int, limit: str) -> tuple[str, str]:
    """Return what is wrong if too large a share of the samples is bad, and the most frequent reason; else empty texts.

    `counts` have "bad/REASON"; `limit` is the setting with its value, as in max_bad_share=0.1.
    """
    bad = {name[4:]: n for name, n in sorted(counts.items(), key=lambda item: -item[1]) if name.startswith("bad/")}
    n_bad = sum(bad.values())
    if n_bad < MIN_BAD or n_bad <= float(limit.partition("=")[2]) * n_read:
        return "", ""
    reasons = ", ".join(f"{n} {name}" for name, n in bad.items())
    return f"{n_bad} of the {n_read} samples that this process has read are bad ({reasons}), more than {limit}", next(
        iter(bad)
    )


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


Content = bytes | Mapping[str, Any]
"""A sample as it is stored: its part of a tar, or as webdataset gives it."""


class SampleFiles:
    """The files of a sample by lower-case extension. Raises BadSample if the bytes are not part of a tar."""

    def __init__(self, data: Content) -> None:
        self.files: dict[str, bytes] = {}
        self.key = ""
        if isinstance(data, Mapping):
            self.key = data["__key__"]
            self.files = {name: content for name, content in data.items() if isinstance(content, bytes)}
            return
        if len(data) > MAX_SAMPLE_BYTES:
            raise BadSample("too_large", f"the sample has more than {MAX_SAMPLE_BYTES} bytes")
        try:
            for key, extension, offset, size in sample_members(data):
                self.key = self.key or key
                if key != self.key:
                    raise BadSample("damaged", f"the index does not fit the tar: the sample has files of {key} too")
                if extension.lower() in self.files:
                    raise BadSample("duplicate_key", f"two adjacent samples share this key: each has a {extension}")
                self.files[extension.lower()] = data[offset : offset + size]
        except TarError as error:
            raise BadSample("damaged", str(error)) from error
        if not self.key:
            raise BadSample("damaged", "the tar has no member at the offset in the index")

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def __getitem__(self, name: str) -> bytes:
        if name not in self.files:
            raise BadSample("missing_member", f"the sample has no {name}, only {', '.join(sorted(self.files))}")
        return self.files[name]

    def text(self, name: str) -> str:
        """Decode a file as UTF-8. Raises BadSample if it does not exist or has another encoding."""
        try:
            return self[name].decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadSample("not_utf8", f"{name} is not in UTF-8: {error.reason} at byte {error.start}") from error

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
