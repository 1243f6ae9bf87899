"""Samples of a tar: consecutive files with the same name up to the first dot, like in WebDataset."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Final

from common.tar import MAX_SIZE, Member, TarError, iter_members, reader_of
from pipeline.read.config import ReadConfig
from pipeline.read.json_rows import parse_json
from pipeline.read.streams import is_stream
from pipeline.read.types import IMAGE, BadRecord, RawRow, Record
from schemas.files import GRIT_CAPTION, GRIT_JSON

IMAGE_SUFFIXES: Final = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")
MAX_MEMBERS: Final = 30_000

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
    used = [(members[name], config.max_row_bytes, "row") for name in (GRIT_JSON, GRIT_CAPTION) if name in members]
    used += [(members[image_suffix], config.max_image_bytes, "image")] if image_suffix else []
    for member, limit, what in used:
        if member.size > limit:
            return BadRecord(f"{member.name} has {member.size} bytes, more than read.max_{what}_bytes={limit}")

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
            record["caption"] = content(GRIT_CAPTION).decode()
        except UnicodeDecodeError as error:
            return BadRecord(f"the caption is not UTF-8: {error.reason}")
    return {**record, IMAGE: content(image_suffix)} if image_suffix else record
