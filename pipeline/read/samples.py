"""Samples of a tar: consecutive files with the same name up to the first dot, like in WebDataset."""

import os
from collections.abc import Iterator
from typing import IO, Final

from common.tar import Member, TarError, iter_members, reader_of
from pipeline.read.config import ReadConfig
from pipeline.read.json_rows import parse_json
from pipeline.read.types import IMAGE, BadRecord, RawRow, Record
from schemas.files import GRIT_CAPTION, GRIT_JSON

IMAGE_SUFFIXES: Final = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")
MAX_MEMBERS: Final = 30_000

Members = dict[str, Member]
"""Suffix -> file of a sample."""


def tar_rows(file: IO[bytes], offset: int) -> Iterator[RawRow]:
    """Yield the samples from byte `offset`; only headers are read.

    Of adjacent samples with the same name, all but the last are bad rows: their files cannot be told apart. A row
    depends only on what follows its first byte, so reading may start at any sample. Raises TarError for a damaged or
    truncated tar, after the samples before the damage; the last of them is left out if it may continue there.
    """

    size = file.seek(0, os.SEEK_END)
    key: str | None = None
    start = 0
    members: Members = {}
    damage: TarError | None = None
    try:
        for member in iter_members(reader_of(file), offset, size, needs_mark=True):
            member_key, suffix = split_name(member.name)
            is_same = member_key == key
            if members and (not is_same or suffix in members):
                yield RawRow(start, 0, _row(members, is_followed=is_same))
                members = {}
            if not members:
                key, start = member_key, member.header_offset
            if len(members) < MAX_MEMBERS:
                members[suffix] = member
    except TarError as error:
        damage = error
        if key is not None and not _is_complete(key, members, error):
            name = next(iter(members.values())).name
            raise TarError(f"{error}; the sample of {name} may be incomplete and is left out") from error
    if members:
        yield RawRow(start, 0, _row(members, is_followed=False))
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


def _row(members: Members, is_followed: bool) -> Members | BadRecord:
    """The files of a sample, or a BadRecord; `is_followed` is true if the next sample has the same name."""
    name = next(iter(members.values())).name
    if is_followed:
        return BadRecord(f"{name} is in the tar twice in a row: two samples have the same name")
    if len(members) == MAX_MEMBERS:
        return BadRecord(f"the sample of {name} has {MAX_MEMBERS} files or more")
    return members


def parse_sample(members: Members, file: IO[bytes], config: ReadConfig) -> Record | BadRecord:
    """The record of a tar sample: the columns of its json, its image, and its txt if the json has no caption."""
    image = next((members[suffix] for suffix in IMAGE_SUFFIXES if suffix in members), None)
    used = [(members[name], config.max_row_bytes, "row") for name in (GRIT_JSON, GRIT_CAPTION) if name in members]
    used += [(image, config.max_image_bytes, "image")] if image else []
    for member, limit, what in used:
        if member.size > limit:
            return BadRecord(f"{member.name} has {member.size} bytes, more than read.max_{what}_bytes={limit}")

    def content(member: Member) -> bytes:
        file.seek(member.data_offset)
        return file.read(member.size)

    record: Record = {}
    if GRIT_JSON in members:
        parsed = parse_json(content(members[GRIT_JSON]))
        if isinstance(parsed, BadRecord):
            return parsed
        record = parsed
    if GRIT_CAPTION in members and record.get("caption") is None:
        try:
            record["caption"] = content(members[GRIT_CAPTION]).decode()
        except UnicodeDecodeError as error:
            return BadRecord(f"the caption is not UTF-8: {error.reason}")
    return {**record, IMAGE: content(image)} if image else record
