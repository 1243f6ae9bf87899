"""Find the samples of a tar from its headers.

The members of a sample are adjacent in its shard, as the webdataset format requires, so a sample is one byte range and
takes one read. Its headers are parsed again after the read.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from common.errors import UserError
from common.tar import BLOCK, TarError, iter_members, round_up_to_block
from trainer.data.index import MAX_SHARD_BYTES, ShardIndex
from trainer.data.shards import ShardFile

MEMBER: Final = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)")
"""Key and extension of a member, as in webdataset: the key ends at the first dot after the last slash."""


def index_shard(url: str) -> ShardIndex:
    """Index a shard from its headers. The incomplete last sample of a truncated shard is dropped.

    Raises UserError if the shard cannot be read or has more than 2 TiB.
    """
    with ShardFile(url) as file:
        starts: list[int] = []
        key, end, problem = "", 0, ""
        if file.size > MAX_SHARD_BYTES:
            raise UserError(f"{url} has {file.size} bytes, more than {MAX_SHARD_BYTES}; divide it into several tars")
        try:
            for member in iter_members(file.read_at, 0, file.size):
                match = MEMBER.fullmatch(member.name)
                if match is None:
                    continue
                if match[1] != key:
                    key = match[1]
                    starts.append(member.header_offset)
                end = member.data_offset + round_up_to_block(member.size)
            if file.size % BLOCK or end >= file.size:
                problem = "no end-of-archive mark, so it may be truncated" if starts else "it is empty"
        except TarError as error:
            problem = str(error)
            match = MEMBER.fullmatch(error.member)
            if match is not None and match[1] == key and starts:
                end = starts.pop()
        bounds = np.array([*starts, min(end, file.size)] if starts else [0], np.int64)
        return ShardIndex.of(url, file.size, bounds[:-1], bounds[1:], problem)


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
