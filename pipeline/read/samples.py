"""Formats of images with text beside them: tars, as in WebDataset, and folders."""

import hashlib
import json
import os
from array import array
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import IO, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from numpy.typing import NDArray

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from hypergrit_common.remote import THREADS, map_concurrently, one_line, open_store, store_errors
from hypergrit_common.tar import MAX_SIZE, Member, TarError, iter_members, reader_of
from hypergrit_common.text import counted
from pipeline.read.config import ReadConfig
from pipeline.read.nested import path_columns
from pipeline.read.roots import Location, RefusedError, Root, file_size, object_version, read_file
from pipeline.read.rows import with_named
from pipeline.read.streams import INVALID, DamagedFileError, compression_of, input_errors, is_stream, open_stream
from pipeline.read.text import parse_json
from pipeline.read.types import IMAGE, BadRecord, Counted, Load, Piece, RawRow, Record, Sequential
from schemas.files import FILES, GRIT_CAPTION, GRIT_JSON, INDEX_FILE, MANIFEST_FILE, ShardPath

IMAGE_SUFFIXES: Final = (
    *("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jp2", "j2k", "jpx", "heic", "heif"),
)

# Samples of a tar: consecutive files with the same name up to the first dot.

MAX_MEMBERS: Final = 30_000
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
        member = self.members[suffix]
        if suffix in IMAGE_SUFFIXES:
            rank = IMAGE_SUFFIXES.index(suffix)
            if any(name in self.members for name in IMAGE_SUFFIXES[:rank]):
                return
            for name in IMAGE_SUFFIXES[rank:]:
                self.contents.pop(name, None)
        elif suffix not in (GRIT_JSON, GRIT_CAPTION):
            return
        if member.size <= (config.max_image_bytes if suffix in IMAGE_SUFFIXES else config.max_row_bytes):
            self.contents[suffix] = _content(member, file)


def tar_rows(file: IO[bytes], offset: int, config: ReadConfig) -> Iterator[RawRow]:
    """Yield the samples from byte `offset`; only headers are read, and of a compressed tar the contents of the sample.

    Of adjacent samples with the same name, all but the last are bad rows: their files cannot be told apart. A row
    depends only on what follows its first byte, so reading may start at any sample. Raises TarError for a damaged or
    truncated tar, after the samples before the damage; the last of them is left out if it may continue there.
    """

    is_compressed = is_stream(file)
    size = MAX_SIZE if is_compressed else file.seek(0, os.SEEK_END)
    key: str | None = None
    start = 0
    sample = Sample()
    damage: TarError | None = None
    try:
        for member in iter_members(reader_of(file), offset, size, needs_mark=True):
            member_key, suffix = split_name(member.name)
            is_same = member_key == key
            if sample.members and (not is_same or suffix in sample.members):
                yield RawRow(start, 0, _row(sample, is_followed=is_same))
                sample = Sample()
            if not sample.members:
                key, start = member_key, member.header_offset
            if len(sample.members) < MAX_MEMBERS:
                sample.members[suffix] = member
                if is_compressed:
                    sample.keep(suffix, file, config)
    except TarError as error:
        damage = error
        if key is not None and not _is_complete(key, sample.members, error):
            name = next(iter(sample.members.values())).name
            raise TarError(f"{error}; the sample of {name} may be incomplete and is left out") from error
    if sample.members:
        yield RawRow(start, 0, _row(sample, is_followed=False))
    if damage:
        raise damage


class Tar(Sequential):
    """Samples of a tar."""

    name = "tar"
    suffixes = (".tar", ".tgz")

    def find(self, file: IO[bytes], offset: int, line: int, n_columns: int, config: ReadConfig) -> Iterator[RawRow]:
        return tar_rows(file, offset, config)

    def parse(self, payload: Any, header: list[str], file: IO[bytes], config: ReadConfig) -> Record | BadRecord:
        return parse_sample(payload, file, config)


def split_name(name: str) -> tuple[str, str]:
    """Split the name of a file into the key of its sample, which ends at the first dot, and its suffix in lower case.

    >>> split_name("folder/000001.seg.PNG")
    ('folder/000001', 'seg.png')
    """
    folder, slash, file = name.rpartition("/")
    stem, _, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", suffix.lower()


def _is_complete(key: str, members: Members, damage: TarError) -> bool:
    """True if the sample `key`, of which `members` precede the damage, has no other file.

    The name of a truncated file is certain. That in a damaged header may be wrong, so the sample must also have an
    image and a caption. Nothing is known of what follows a header that is truncated or missing.
    """
    if damage.member:
        return split_name(damage.member)[0] != key
    has_pair = any(suffix in members for suffix in IMAGE_SUFFIXES) and (GRIT_CAPTION in members or GRIT_JSON in members)
    return has_pair and bool(damage.damaged_name) and split_name(damage.damaged_name)[0] != key


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


def parse_sample(sample: Sample, file: IO[bytes], config: ReadConfig) -> Record | BadRecord:
    """The record of a tar sample: the columns of its json, its image, and its txt if the json has no caption."""
    members = sample.members
    image_suffix = next((suffix for suffix in IMAGE_SUFFIXES if suffix in members), None)
    used = [(members[name], config.max_row_bytes) for name in (GRIT_JSON, GRIT_CAPTION) if name in members]
    used += [(members[image_suffix], config.max_image_bytes)] if image_suffix else []
    for member, limit in used:
        if member.size > limit:
            return BadRecord(f"{member.name} has {member.size} bytes, more than the limit of {limit}")

    def content(suffix: str) -> bytes:
        return sample.contents[suffix] if suffix in sample.contents else _content(members[suffix], file)

    record: Record = {}
    if GRIT_JSON in members:
        parsed = parse_json(content(GRIT_JSON))
        if isinstance(parsed, BadRecord):
            return parsed
        record = parsed
    if GRIT_CAPTION in members and record.get("caption") is None:
        try:
            record["caption"] = content(GRIT_CAPTION).decode(config.encoding)
        except UnicodeError as error:
            return BadRecord(f"the caption is not {config.encoding}: {one_line(error)}; see read.encoding")
    return {**record, IMAGE: content(image_suffix)} if image_suffix else record


# Find the samples of tars for planning: from the index of an output, or from their headers.


class Scan(NamedTuple):
    """The bytes [n] at which the samples of a tar start, and the error at which they end, if it is damaged."""

    starts: NDArray[np.int64]
    damage: str = ""


Scanner = Callable[[Sequence[tuple[str, int]], ReadConfig, int | None], Generator[Scan, None, None]]
"""Scans tars, pairs (path, size), in their order, each up to a number of samples; raises like `scan_tar`."""


def scan_tars(files: Sequence[tuple[str, int]], config: ReadConfig, limit: int | None) -> Generator[Scan, None, None]:
    """Scan tars one after the other, each when its result is needed: a Scanner."""
    return (scan_tar(path, size, config, limit) for path, size in files)


def scan_tar(path: str, size: int, config: ReadConfig, limit: int | None) -> Scan:
    """Find the first samples of a tar, up to one more than `limit`.

    Raises UserError if it cannot be read, and for one that is damaged before its first sample, unless
    `read.skip_damaged` is set.
    """
    starts = indexed_starts(path, size)
    if starts is not None:
        return Scan(starts)
    if config.selection is not None:
        check_selection(path, config)
    found, damage = array("q"), ""
    try:
        with input_errors(path), open_stream(path, headers=True) as file:
            for raw in tar_rows(file, 0, config):
                found.append(raw.offset)
                if limit is not None and len(found) > limit:
                    break
    except DamagedFileError as error:
        damage = damage_of(error, len(found), config)
    return Scan(np.frombuffer(found, np.int64) if found else np.zeros(0, np.int64), damage)


def check_selection(path: str, config: ReadConfig) -> None:
    """Raise UserError if the first samples of a tar lack a column that `read.where` uses: it would drop all of them."""
    assert config.selection is not None
    names: dict[str, None] = {}
    with suppress(DamagedFileError), input_errors(path), open_stream(path) as file:
        for raw in islice(tar_rows(file, 0, config), CHECKED_SAMPLES):
            if isinstance(sample := raw.payload, BadRecord):
                continue
            texts = {name: member for name, member in sample.members.items() if name in (GRIT_JSON, GRIT_CAPTION)}
            record = parse_sample(Sample(texts, sample.contents), file, config)
            if not isinstance(record, BadRecord):
                names |= dict.fromkeys({**path_columns(path), **with_named(record, config, path)})
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
        files = json.loads(fs.cat_file(manifest))["files"]
        if files[f"{place.folder}/{place.name}"]["bytes"] != size:
            return None
        content = fs.cat_file(f"{root}/{name}")
        if hashlib.sha256(content).hexdigest() != files[name]["sha256"]:
            return None
        table = pa.ipc.open_file(pa.BufferReader(content)).read_all().select(["format", "offset"])
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
    counts = Counter(_suffix(name.rpartition("/")[2]) for name in names)
    parts = ", ".join(f"{n} .{suffix}"[:40] for suffix, n in counts.most_common(8))
    return f"{counted(counts.total(), 'file')} ({parts})"


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
            parsed = columns if isinstance(columns, BadRecord) else parse_json(columns)
            if isinstance(parsed, BadRecord):
                return BadRecord(f"{image.columns}: {parsed.message}")
            record = parsed
        if image.caption is not None and record.get("caption") is None:
            text = _beside(image.caption, root, config)
            if isinstance(text, BadRecord):
                return BadRecord(f"{image.caption}: {text.message}")
            record["caption"] = text.decode(config.encoding, INVALID).removeprefix("\ufeff")
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
