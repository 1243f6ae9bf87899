"""Samples of a tar: consecutive files with the same name up to the first dot, like in WebDataset."""

import os
from collections.abc import Iterator
from typing import IO, Final

from common.tar import Member, iter_members
from pipeline.read.config import ReadConfig
from pipeline.read.json_rows import parse_json
from pipeline.read.types import IMAGE, BadRecord, RawRow, Record
from schemas.files import GRIT_CAPTION, GRIT_JSON

IMAGE_SUFFIXES: Final = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")
MAX_MEMBERS: Final = 30_000

Members = dict[str, Member]
"""Suffix -> file of a sample."""


def tar_rows(file: IO[bytes], offset: int) -> Iterator[RawRow]:
    """Yield the samples from byte `offset`; only headers are read. Raises TarError for a damaged tar.

    Of adjacent samples with the same name, all but the last are bad rows: their files cannot be told apart. A row
    depends only on what follows its first byte, so reading may start at any sample.
    """

    def read_at(start: int, n_bytes: int) -> bytes:
        file.seek(start)
        return file.read(n_bytes)

    size = file.seek(0, os.SEEK_END)
    key: str | None = None
    start = 0
    members: Members = {}
    for member in iter_members(read_at, offset, size):
        folder, _, name = member.name.rpartition("/")
        stem, _, suffix = name.partition(".")
        suffix, is_same = suffix.lower(), f"{folder}/{stem}" == key
        if members and (not is_same or suffix in members):
            yield RawRow(start, 0, _row(members, is_followed=is_same))
            members = {}
        if not members:
            key, start = f"{folder}/{stem}", member.header_offset
        if len(members) < MAX_MEMBERS:
            members[suffix] = member
    if members:
        yield RawRow(start, 0, _row(members, is_followed=False))


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
