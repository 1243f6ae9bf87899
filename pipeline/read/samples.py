"""Formats of images with text beside them: tars, as in WebDataset, and folders."""

import hashlib
import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain, islice
from types import MappingProxyType
from typing import IO, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from numpy.typing import NDArray

from hypergrit_common.arrow_sizes import read_arrow_file
from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from hypergrit_common.images import IMAGE_SUFFIXES
from hypergrit_common.json_file import MAX_BYTES
from hypergrit_common.remote import THREADS, map_concurrently, one_line, open_store, store_errors
from hypergrit_common.tar import MAX_SIZE, Member, TarError, iter_members, reader_of
from hypergrit_common.text import counted, shortened
from pipeline.read.config import ReadConfig
from pipeline.read.nested import path_columns
from pipeline.read.roots import Location, RefusedError, Root, file_size, object_version, read_file
from pipeline.read.rows import find_columns, with_named
from pipeline.read.streams import DamagedFileError, LayoutError, compression_of, input_errors, is_stream, open_stream
from pipeline.read.text import decode, parse_json
from pipeline.read.types import IMAGE, LACK, BadRecord, Counted, Load, Piece, RawRow, Record, Sequential
from schemas.files import FILES, GRIT_CAPTION, GRIT_JSON, INDEX, INDEX_FILE, MANIFEST_FILE, ShardPath

PICTURES: Final = frozenset(IMAGE_SUFFIXES)

# Which files of a sample of a tar are read.


class Layout(NamedTuple):
    """The use of the files of a sample, by suffix."""

    image: str | None
    caption: str | None
    columns: str | None  # a JSON object
    unread: tuple[str, ...]
    n_pictures: int  # files with the suffix of a picture, read or not
    kinds: int  # a bit each for pictures, a caption, columns, and files that are not read
    problem: str  # why it is no sample that can be read right, with the fix; "" if it is one


@lru_cache(maxsize=16)
def names_of(image_member: str | None, caption_member: str | None) -> tuple[tuple[str, ...], ...]:
    """Return the suffixes of pictures, captions and JSON objects that are read, the best of each first."""
    images, texts = (
        [name.strip(" .").lower() for name in (some or "").split(",")] for some in (image_member, caption_member)
    )
    columns = tuple(name for name in texts if name.endswith(GRIT_JSON)) or (GRIT_JSON,)
    captions = tuple(name for name in texts if name and name not in columns) or (GRIT_CAPTION,)
    return tuple(filter(None, images)) or IMAGE_SUFFIXES, captions, columns


@lru_cache(maxsize=1 << 14)
def names_picture(suffix: str) -> bool:
    """Return True if a suffix, which may have several parts, ends with that of a picture."""
    return suffix.rpartition(".")[2] in IMAGE_SUFFIXES


def layout_of(suffixes: Collection[str], config: ReadConfig) -> Layout:
    """Return the use of the files of a sample."""
    find = _layout if len(suffixes) <= MAX_CACHED else _layout.__wrapped__
    return find(tuple(suffixes), config.image_member, config.caption_member)


@lru_cache(maxsize=256)
def _layout(suffixes: tuple[str, ...], image_member: str | None, caption_member: str | None) -> Layout:
    known = names_of(image_member, caption_member)
    found = set(suffixes)
    image, caption, columns = (next(filter(found.__contains__, names), None) for names in known)
    found -= {image, caption, columns}
    unread, pictures = [suffix for suffix in suffixes if suffix in found], list(filter(names_picture, suffixes))
    texts = [suffix for suffix in unread if suffix.endswith((f".{GRIT_CAPTION}", f".{GRIT_JSON}"))]
    starts = {suffix.rpartition(".")[0] for suffix in texts}
    several = [suffix for suffix in pictures if suffix in found and suffix.rpartition(".")[0] in starts]
    problem = ""
    if image_member is None and len(several) > (image is None):
        problem = (f"have the same key, which ends at the first dot, although {several[0]} has a text of its own; set "
                   f"read.tar_key=last_dot, or read.image_member={image or several[0]} if they are one sample")  # fmt: skip
    elif image_member is None and pictures and image is None:
        problem = (f"are a sample without a picture, since none is named {', '.join(IMAGE_SUFFIXES[:3])}, ...; set "
                   f"read.image_member={pictures[0]}, or read.tar_key=last_dot if its key has dots")  # fmt: skip
    elif caption_member is None and image is not None and caption is None and columns is None and texts:
        problem = f"are a sample without a text, since none is named txt or json; set read.caption_member={texts[0]}"
    elif caption_member is None and not pictures and texts and max(Counter(map(_suffix, suffixes)).values()) > 1:
        problem = (f"have the same key, which ends at the first dot, although there are several texts; set "
                   f"read.tar_key=last_dot, or read.caption_member={columns or caption or texts[0]} if they are one sample")  # fmt: skip
    kinds = sum(1 << i for i, part in enumerate((pictures, caption, columns, unread)) if part)
    return Layout(image, caption, columns, tuple(unread), len(pictures), kinds, problem)


# Samples of a tar: consecutive files with the same key, which ends at the first dot of a name, or the last.

MAX_MEMBERS: Final = 30_000
SHOWN: Final = 4
"""Files of a sample that a message names."""
MAX_CACHED: Final = 64
"""Files of a sample up to which its layout is remembered."""
MAX_SUFFIX: Final = 40
MAX_LAYOUTS: Final = 4096
MAX_KINDS: Final = 20
"""Kinds of files that are not read, of which a tar counts each; the others are counted together."""
CHECKED_SAMPLES: Final = 100
"""Samples of a tar in which the columns of `read.where` are looked for."""

Members = dict[str, Member]
"""Suffix -> file of a sample."""


@dataclass(slots=True)
class Sample:
    """The files of a sample, and the contents of some: those that a compressed tar cannot be asked for again."""

    members: Members = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)

    def keep(self, suffix: str, file: IO[bytes], config: ReadConfig) -> None:
        """Read the content of a file that `parse_sample` uses, unless it is too long. Of several images one is kept."""
        names = {*chain(*names_of(config.image_member, config.caption_member))}
        member, layout = self.members[suffix], layout_of([name for name in self.members if name in names], config)
        if suffix not in names or suffix in layout.unread:
            return
        for name in layout.unread:
            self.contents.pop(name, None)
        if member.size <= (config.max_image_bytes if suffix == layout.image else config.max_row_bytes):
            self.contents[suffix] = _content(member, file)

    def names(self) -> str:
        """Return the names of the files, of many the first ones."""
        return shortened([member.name for member in islice(self.members.values(), SHOWN + 1)], SHOWN, ", ")


Found = tuple[int, str, Sample, bool]
"""A sample of a tar: the byte of its first header, its key, its files, and True if the next one has the same key."""
HIDDEN: Final = re.compile(r"(?:^|/)(?:\.(?!\.?/)|__MACOSX/)")
"""Names of files that macOS adds, such as ._a.jpg, and of others that are hidden; not ./a.jpg."""


def find_samples(file: IO[bytes], offset: int, config: ReadConfig, tally: Counter[str]) -> Iterator[Found]:
    """Yield the samples from byte `offset`, and count in `tally` what belongs to none, and all pictures.

    Only headers are read, and of a compressed tar the contents of the sample. Raises TarError for a damaged or truncated
    tar, after the samples before the damage; the last of them is left out if it may continue there. Raises LayoutError
    for a link in place of a picture or text.
    """
    is_compressed, is_last = is_stream(file), config.tar_key == "last_dot"
    size = MAX_SIZE if is_compressed else file.seek(0, os.SEEK_END)
    key: str | None = None
    start = n_pictures = 0
    sample = Sample({}, {})
    members = sample.members
    damage: TarError | None = None
    try:
        for member in iter_members(reader_of(file), offset, size, needs_mark=True, links=True):
            name = member.name
            if (name[:1] == "." or "/" in name) and HIDDEN.search(name):
                tally["hidden"] += 1
                continue
            member_key, suffix = split_name(name, is_last)
            if member.target:
                layout = layout_of([suffix], config)
                if layout.problem or not layout.unread:
                    raise LayoutError(f"{name} is a link to {member.target}; write the tar with --hard-dereference, and with "
                                      "--dereference for symbolic links")  # fmt: skip
                tally["links"] += 1
                continue
            is_same = member_key == key
            if members and (not is_same or suffix in members):
                yield start, key or "", sample, is_same
                members = {}
                sample = Sample(members, {})
            if not members:
                key, start = member_key, member.header_offset
            if len(members) < MAX_MEMBERS:
                n_pictures += suffix in PICTURES or ("." in suffix and names_picture(suffix))
                members[suffix] = member
                if is_compressed:
                    sample.keep(suffix, file, config)
    except TarError as error:
        damage = error
        if key is not None and not _is_complete(key, members, error, config):
            name = next(iter(members.values())).name
            raise TarError(f"{error}; the sample of {name} may be incomplete and is left out") from error
    if members:
        yield start, key or "", sample, False
    tally["found"] = n_pictures
    if damage:
        raise damage


def tar_rows(file: IO[bytes], offset: int, config: ReadConfig) -> Iterator[RawRow]:
    """Yield the samples from byte `offset` as `find_samples` does, and raise like it.

    Of adjacent samples with the same name, all but the last are bad rows: their files cannot be told apart. A row
    depends only on what follows its first byte, so reading may start at any sample.
    """
    for start, _, sample, is_followed in find_samples(file, offset, config, Counter()):
        yield RawRow(start, 0, _row(sample, is_followed))


class Tar(Sequential):
    """Samples of a tar."""

    name = "tar"
    suffixes = (".tar", ".tgz")

    def find(self, file: IO[bytes], offset: int, line: int, n_columns: int, config: ReadConfig) -> Iterator[RawRow]:
        return tar_rows(file, offset, config)

    def parse(self, payload: Any, header: list[str], file: IO[bytes], config: ReadConfig) -> Record | BadRecord:
        return parse_sample(payload, file, config)


def split_name(name: str, is_last: bool = False) -> tuple[str, str]:
    """Split the name of a file into the key of its sample, which ends at the first dot, and its suffix in lower case.

    `is_last`: it ends at the last dot.

    >>> split_name("folder/000001.seg.PNG"), split_name("folder/000001.seg.PNG", is_last=True)
    (('folder/000001', 'seg.png'), ('folder/000001.seg', 'png'))
    """
    folder, slash, file = name.rpartition("/")
    if is_last:
        stem, dot, suffix = file.rpartition(".")
        return f"{folder}{slash}{stem if dot else suffix}", suffix.lower() if dot else ""
    stem, _, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", suffix.lower()


def _is_complete(key: str, members: Members, damage: TarError, config: ReadConfig) -> bool:
    """True if the sample `key`, of which `members` precede the damage, has no other file.

    The name of a truncated file is certain. That in a damaged header may be wrong, so the sample must also have an
    image and a caption. Nothing is known of what follows a header that is truncated or missing.
    """
    if name := damage.member or damage.damaged_name:
        layout = layout_of(members, config)
        has_pair = layout.image is not None and (layout.caption or layout.columns) is not None
        is_other = split_name(name, config.tar_key == "last_dot")[0] != key
        return is_other and (has_pair or bool(damage.member))
    return False


def _row(sample: Sample, is_followed: bool) -> Sample | BadRecord:
    """The sample, or a BadRecord; `is_followed` is true if the next sample has the same name."""
    name = next(iter(sample.members.values())).name
    if is_followed:
        return BadRecord(f"{name} is in the tar twice in a row: two samples have the same name")
    if len(sample.members) == MAX_MEMBERS:
        return BadRecord(f"the sample of {name} has {MAX_MEMBERS} files or more")
    return sample


def _content(member: Member, file: IO[bytes]) -> bytes:
    file.seek(member.data_offset)
    return file.read(member.size)


def is_blank(caption: Any) -> bool:
    """Return True for the value of a missing caption: null, NaN, or white space."""
    return caption is None or caption != caption or (isinstance(caption, str) and not caption.strip())


def parse_sample(sample: Sample, file: IO[bytes], config: ReadConfig) -> Record | BadRecord:
    """The record of a tar sample: the columns of its json, its image, and its txt if the json has no caption."""
    members, layout = sample.members, layout_of(sample.members, config)
    for name in (layout.columns, layout.caption, layout.image):
        limit = config.max_image_bytes if name == layout.image else config.max_row_bytes
        if name is not None and members[name].size > limit:
            return BadRecord(f"{members[name].name} has {members[name].size} bytes, more than the limit of {limit}")

    def content(suffix: str) -> bytes:
        return sample.contents[suffix] if suffix in sample.contents else _content(members[suffix], file)

    record: Record = {}
    if layout.columns is not None:
        parsed = parse_json(content(layout.columns), config.encoding)
        if isinstance(parsed, BadRecord):
            return BadRecord(f"{members[layout.columns].name}: {parsed.message}")
        record = parsed
    is_chosen = config.caption_member is not None and layout.caption != GRIT_CAPTION
    if layout.caption is not None and (is_chosen or is_blank(record.get("caption"))):
        text = decode(content(layout.caption), config.encoding)
        if isinstance(text, BadRecord):
            return BadRecord(f"{members[layout.caption].name}: {text.message}")
        record["caption"] = text
    if layout.image is not None and (image := content(layout.image)):
        return {**record, IMAGE: image}
    lack = f"the sample has neither a picture nor a URL: {sample.names()}"
    return {**record, LACK: lack if layout.image is None else f"{members[layout.image].name} is empty"}


# Find the samples of tars for planning: from the index of an output, or from their headers.


class Scan(NamedTuple):
    """The bytes [n] at which the samples of a tar start, and the error at which they end, if it is damaged.

    `tally` as in schemas.job.InputFile; empty for a tar whose samples an index names. `half` is the first file of a tar
    whose samples all are pictures without a text, or texts without a picture or its place, and True for pictures.
    """

    starts: NDArray[np.int64]
    damage: str = ""
    tally: Mapping[str, int] = MappingProxyType({})
    half: tuple[str, bool] | None = None


Tars = Sequence[tuple[str, int, str]]
"""Tars: path, size, and path below the input."""
Scanner = Callable[[Tars, ReadConfig, int | None], Generator[Scan, None, None]]
"""Scans tars in their order, each up to a number of samples; raises like `scan_tar`."""


def scan_tars(files: Tars, config: ReadConfig, limit: int | None) -> Generator[Scan, None, None]:
    """Scan tars one after the other, each when its result is needed: a Scanner."""
    return (scan_tar(*file, config, limit) for file in files)


def scan_tar(path: str, size: int, below: str, config: ReadConfig, limit: int | None) -> Scan:
    """Find the first samples of a tar, up to one more than `limit`.

    Raises UserError if it cannot be read, and for one that is damaged before its first sample, unless
    `read.skip_damaged` is set.
    """
    starts = indexed_starts(path, size)
    if starts is not None:
        return Scan(starts)
    if config.selection is not None:
        check_selection(path, below, config)
    found, keys, kinds, damage = array("q"), array("q"), bytearray(), ""
    tally, counts = Counter[str](), dict[tuple[str, ...], list[Any]]()
    most, first, half = None if limit is None else limit + 1, Sample(), None
    try:
        with input_errors(path), open_stream(path, headers=True) as file:
            for start, key, sample, _ in find_samples(file, 0, config, tally):
                found.append(start)
                first = sample if len(found) == 1 else first
                suffixes = tuple(sample.members)
                count = counts.get(suffixes)
                if count is None:
                    if len(counts) == MAX_LAYOUTS:
                        count_members(counts, tally)
                    layout = layout_of(suffixes, config)
                    if layout.problem:
                        raise LayoutError(f"{sample.names()} {layout.problem}")
                    count = counts[suffixes] = [layout, 0, layout.kinds]
                count[1] += 1
                keys.append(hash(key))
                kinds.append(count[2])
                if len(found) == most:
                    break
            else:
                count_members(counts, tally)
                if tally["found"] != tally["placed"]:
                    raise LayoutError(
                        f"it has {counted(tally['found'], 'picture')}, its samples {tally['placed']:,}; write it anew"
                    )
                check_together(file, found, keys, kinds, config)
            half = half_of(first, kinds, file, config)
    except DamagedFileError as error:
        damage = damage_of(error, len(found), config)
    found_starts = np.frombuffer(found, np.int64) if found else np.zeros(0, np.int64)
    count_members(counts, tally)
    counted_names = {name: n for name, n in sorted(tally.items()) if n and name not in ("found", "placed")}
    return Scan(found_starts, damage, counted_names, half)


def half_of(first: Sample, kinds: Sequence[int], file: IO[bytes], config: ReadConfig) -> tuple[str, bool] | None:
    """Return `Scan.half` of a tar with this first sample and `Layout.kinds` of its samples."""
    name = next((member.name for member in first.members.values()), "")
    all_kinds = int(np.bitwise_or.reduce(np.asarray(kinds, np.uint8), initial=0)) & 7
    if all_kinds == 1:
        return name, True
    if not all_kinds or all_kinds & 1:
        return None
    record = parse_sample(first, file, config)
    columns = None if isinstance(record, BadRecord) else find_columns(record, config, has_images=True)
    return (name, False) if columns and not any((columns.url, columns.image, columns.path)) else None


def check_halves(halves: Sequence[tuple[str, str, bool]]) -> None:
    """Raise UserError for tars with pictures alone beside those with texts alone: (path, first file, True for pictures)."""
    pictures, texts = ([half for half in halves if half[2] == kind] for kind in (True, False))
    if pictures and texts:
        (path, name, _), (other, text, _) = pictures[0], texts[0]
        raise UserError(
            f"{path} has pictures without texts, the first {name}, and {other} texts without pictures, the first {text}; "
            "the files of a sample must follow each other in one tar: extract both, and write them with --sort=name"
        )


def check_together(
    file: IO[bytes], starts: Sequence[int], keys: Sequence[int], kinds: Sequence[int], config: ReadConfig
) -> None:
    """Raise LayoutError if the files of samples are not together.

    Then a key, of which `keys` has the hash, comes again with files of other kinds (`Layout.kinds`), or no sample has both a
    picture and a text, although at least half as many have the one as the other. A key that comes again with files of the
    same kinds is another sample.
    """
    codes, kind = np.asarray(keys, np.int64), np.asarray(kinds, np.uint8)
    order = np.argsort(codes, kind="stable")
    is_apart = (np.diff(codes[order]) == 0) & (kind[order][1:] & kind[order][:-1] == 0)
    pictures, texts = np.flatnonzero(kind & 1), np.flatnonzero(kind & 6)
    if is_apart.any():
        first = order[:-1][is_apart].argmin()  # the hashes have another order in each process
        places = np.array([order[:-1][is_apart][first], order[1:][is_apart][first]])
        fix = "leave out read.tar_key=last_dot" if config.tar_key == "last_dot" else "write the tar with --sort=name"
    elif 2 * min(n := (len(pictures), len(texts))) >= max(*n, 1) and not np.intersect1d(pictures, texts).size:
        places = np.array([pictures[0], texts[0]])
        fix = "give them that, and write the tar with --sort=name"
    else:
        return
    first, second = (next(iter_members(reader_of(file), starts[i], MAX_SIZE)).name for i in sorted(places.tolist()))
    raise LayoutError(
        f"{first} and {second} are apart: the files of a sample must follow each other, with the same name in the same "
        f"folder; {fix}"
    )


def count_members(counts: dict[tuple[str, ...], list[Any]], tally: Counter[str]) -> None:
    """Move the counts of layouts into those of a tar, as in schemas.job.InputFile, and `placed`, the pictures of samples."""
    others = Counter[str]()
    for layout, n, _ in counts.values():
        tally["placed"] += layout.n_pictures * n
        tally["pictures" if layout.image else "without"] += n
        others.update({f".{suffix}"[:MAX_SUFFIX]: n for suffix in layout.unread})
    for suffix, n in sorted(others.items(), key=lambda item: (-item[1], item[0])):
        tally[suffix if suffix in tally or len(tally) < MAX_KINDS else ".*"] += n
    counts.clear()


def check_selection(path: str, below: str, config: ReadConfig) -> None:
    """Raise UserError if the first samples of a tar lack a column that `read.where` uses: it would drop all of them."""
    assert config.selection is not None
    names: dict[str, None] = {}
    with suppress(DamagedFileError), input_errors(path), open_stream(path) as file:
        for raw in islice(tar_rows(file, 0, config), CHECKED_SAMPLES):
            if isinstance(sample := raw.payload, BadRecord):
                continue
            layout = layout_of(sample.members, config)
            texts = {name: sample.members[name] for name in (layout.columns, layout.caption) if name}
            record = parse_sample(Sample(texts, sample.contents), file, config)
            if not isinstance(record, BadRecord):
                named = {**path_columns(below), **with_named(record, config, below)}
                names |= dict.fromkeys(name for name in named if name != LACK)
            if names.keys() >= config.selection.columns.keys():
                return
    if names:
        config.selection.check(path, names)


def damage_of(error: DamagedFileError, n_rows: int, config: ReadConfig) -> str:
    """The description of a damaged file. Raises `error` if it has no rows and such files are not left out."""
    if n_rows == 0 and not config.skip_damaged:
        raise DamagedFileError(f"{error}, or leave such files out with read.skip_damaged=true") from error
    return str(error)


def indexed_starts(path: str, size: int) -> NDArray[np.int64] | None:
    """Return the first bytes [n] of the samples of a tar of an output, which its manifest and its `_index/` name.

    Returns None for another tar, and if the manifest names another size, or another hash of the index.
    """
    place = ShardPath.split(path)
    if place.folder not in FILES or compression_of(path):
        return None
    name = f"{INDEX_FILE.folder}/{place.stem}{INDEX_FILE.suffix}"
    try:
        fs, root = open_store(place.root)
        manifest = f"{root}/{MANIFEST_FILE.folder}/{place.stem}{MANIFEST_FILE.suffix}"
        for part in (manifest, f"{root}/{name}") if isinstance(fs, LocalFileSystem) else ():
            check_file(part)
        files = json.loads(fs.cat_file(manifest, start=0, end=MAX_BYTES))["files"]
        if files[f"{place.folder}/{place.name}"]["bytes"] != size:
            return None
        content = fs.cat_file(f"{root}/{name}", start=0, end=MAX_BYTES)
        if hashlib.sha256(content).hexdigest() != files[name]["sha256"]:
            return None
        table = read_arrow_file(content, INDEX).select(["format", "offset"])
        of_tar = table.filter(pc.equal(table["format"].cast(pa.string()), place.folder))["offset"]
        starts: NDArray[np.int64] = of_tar.to_numpy()
    except store_errors(ValueError, LookupError, TypeError, RecursionError, pa.ArrowException):
        return None
    return starts if (starts[1:] > starts[:-1]).all() and (not len(starts) or 0 <= starts[0] < size) else None


# Folders: each image is a row, with the caption and the columns of the files beside it.


@dataclass(frozen=True)
class ImageFile:
    """An image of a folder; `caption` and `columns` are the names of the .txt and .json beside it, or None."""

    name: str
    caption: str | None
    columns: str | None


@dataclass(frozen=True)
class Listing:
    """The images of a folder in the order of their names; `size` is that of all files of the rows in bytes.

    `version` is a hash of their names, sizes and times of modification or ETags.
    """

    images: tuple[ImageFile, ...]
    size: int
    version: str


def is_image(name: str) -> bool:
    """Return True for the name of an image file; hidden files are none."""
    return not name.startswith((".", "_")) and _suffix(name) in IMAGE_SUFFIXES


BESIDE: Final = (f".{GRIT_CAPTION}", f".{GRIT_JSON}")
"""Ends of the names of files beside an image, with its caption and its columns."""


def count_suffixes(names: Iterable[str]) -> str:
    """Return how many files there are, by suffix.

    >>> count_suffixes(["a.svg", "b.SVG", "c.psd"])
    '3 files (2 .svg, 1 .psd)'
    """
    counts = Counter(map(suffix_of, names))
    parts = ", ".join(f"{n} {suffix}" for suffix, n in counts.most_common(8))
    return f"{counted(counts.total(), 'file')} ({parts})"


def suffix_of(path: str) -> str:
    """Return the last suffix of a path, with its dot and cut."""
    return f".{_suffix(path.rpartition('/')[2])}"[:MAX_SUFFIX]


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower()


def list_folder(path: str) -> Listing:
    """List a folder, without those in it. Raises UserError if that fails."""
    try:
        fs, root = open_store(path)
        fs.invalidate_cache(root)
        found = {info["name"].rstrip("/").rpartition("/")[2]: info for info in fs.ls(root.rstrip("/"), detail=True)}
    except store_errors(ValueError) as error:
        raise UserError(f"cannot list the input folder {path}: {one_line(error)}; check the folder") from error
    by_stem: dict[str, dict[str, str]] = {}
    for name in sorted(found):
        if _suffix(name) in (GRIT_CAPTION, GRIT_JSON):
            by_stem.setdefault(name.rpartition(".")[0], {}).setdefault(_suffix(name), name)
    images, used, size = [], list[str](), 0
    for name in sorted(found):
        if is_image(name) and found[name]["type"] != "directory":
            beside = by_stem.get(name.rpartition(".")[0], {})
            images.append(ImageFile(name, beside.get(GRIT_CAPTION), beside.get(GRIT_JSON)))
            used += [name, *beside.values()]
    digest = hashlib.sha256()
    for name in used:
        info = found[name]
        size += int(info["size"] or 0)
        time = info.get("mtime") if isinstance(fs, LocalFileSystem) else object_version(info)
        digest.update(f"{name}\0{info['size']}\0{time}\0".encode(errors="surrogateescape"))
    return Listing(tuple(images), size, f"listing:{digest.hexdigest()}")


class Folder(Counted):
    """The images of a folder; its path ends with a slash. Nothing else is read: links that lead out of it are refused.

    The files beside the images are read here, the images later, by their Locations.
    """

    name = "folder"

    def count(self, path: str, config: ReadConfig) -> int:
        return len(list_folder(path).images)

    def loads(
        self, piece: Piece, config: ReadConfig, is_wanted: Callable[[int], bool]
    ) -> Iterator[tuple[int, Load | None]]:
        fs, name = open_store(piece.path)
        root = _root(fs, name.rstrip("/"), piece.path)
        images = list_folder(piece.path).images[piece.first_row : piece.first_row + piece.n_rows]
        found = ((image, is_wanted(row)) for row, image in enumerate(images, piece.first_row))
        for record in map_concurrently(partial(_load, root=root, config=config), found, THREADS):
            yield 0, partial(_copy, record)


def _root(fs: AbstractFileSystem, name: str, url: str) -> Root:
    if isinstance(fs, LocalFileSystem):
        return Root(fs, os.path.realpath(name), "")
    protocol, _, path = url.rstrip("/").partition("://")
    return Root(fs, path, protocol, name)


def _load(item: tuple[ImageFile, bool], root: Root, config: ReadConfig) -> Record | BadRecord:
    image, is_wanted = item
    return _record(image, root, config) if is_wanted else BadRecord("")


def _copy(record: Record | BadRecord) -> Record | BadRecord:
    """Return a record that the caller may change: a row that fails is converted twice."""
    return record if isinstance(record, BadRecord) else dict(record)


def _record(image: ImageFile, root: Root, config: ReadConfig) -> Record | BadRecord:
    record: Record = {}
    try:
        if image.columns is not None:
            columns = _beside(image.columns, root, config)
            parsed = columns if isinstance(columns, BadRecord) else parse_json(columns, config.encoding)
            if isinstance(parsed, BadRecord):
                return BadRecord(f"{image.columns}: {parsed.message}")
            record = parsed
        if image.caption is not None and is_blank(record.get("caption")):
            content = _beside(image.caption, root, config)
            text = content if isinstance(content, BadRecord) else decode(content, config.encoding)
            if isinstance(text, BadRecord):
                return BadRecord(f"{image.caption}: {text.message}")
            record["caption"] = text
    except RefusedError as error:
        return BadRecord(f"{image.name}: {error}")
    except FileNotFoundError as error:
        return BadRecord(f"{image.name}: {one_line(error)}")
    return {**record, IMAGE: Location(root, f"{root.path}/{image.name}")}


def _beside(name: str, root: Root, config: ReadConfig) -> Any:
    place = Location(root, f"{root.path}/{name}")
    size = file_size(place)
    if size > config.max_row_bytes:
        return BadRecord(f"{size} bytes, more than the limit of {config.max_row_bytes}")
    return read_file(place, size)
