"""The input cut into shards of equal length: names, counts and places only."""

import logging
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Final

import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from common.errors import UserError
from common.remote import map_concurrently, one_line, open_store, store_errors
from pipeline.read.config import ReadConfig
from pipeline.read.formats import SUFFIXES, columns, format_of, opened, raw_rows
from pipeline.read.stage import check_columns
from pipeline.read.types import Piece, ShardPlan

logger = logging.getLogger(__name__)

KNOWN: Final = ", ".join(SUFFIXES)

Cut = tuple[int, int, int]
"""A row of a file, and the byte and the line at which it starts; the end of the file's rows has no place."""


def plan_shards(input: str, rows_per_shard: int, limit: int | None, config: ReadConfig) -> list[ShardPlan]:
    """Shards of `rows_per_shard` rows (the last may be shorter) over all files of `input`, in the order of their names.

    Costs the metadata of a parquet, a count of lines of a text file, and the headers of a tar; each file is opened once.
    Raises UserError for an input that is missing, empty, unreadable, or without the columns needed.
    """
    files = list_files(input)
    parquets = [path for path, _ in files if format_of(path) == "parquet"]
    pieces: list[list[Piece]] = []
    total = 0
    # Answers come in the order of the files, so those past the limit are never looked at, nor their errors raised.
    with closing(map_concurrently(partial(_parquet_rows, config=config), parquets)) as parquet_rows:
        for path, size in files:
            most = None if limit is None else limit - total
            if format_of(path) == "parquet":
                cuts = _cut_parquet(next(parquet_rows), total, rows_per_shard, most)
            else:
                cuts = _cut_text(path, config, total, rows_per_shard, most)
            for (row, *place), (end, *_) in pairwise(cuts):
                shard = total // rows_per_shard
                if shard == len(pieces):
                    pieces.append([])
                pieces[shard].append(Piece(path, row, end - row, size, *place))
                total += end - row
            if total == limit:
                break
    if not total:
        raise UserError(f"input {input!r} holds no row; give files with at least one")
    return [
        ShardPlan(i, i * rows_per_shard, sum(piece.n_rows for piece in shard), tuple(shard))
        for i, shard in enumerate(pieces)
    ]


def list_files(input: str) -> list[tuple[str, int]]:
    """(path, bytes) of the files that `input` means: a file, a folder, a glob, or any of them at an fsspec URL; sorted.

    In a folder that holds tars, only these count: img2dataset puts a parquet with the same rows beside each.
    """
    fs, root = open_store(input)
    try:
        if any(sign in root for sign in "*?[") and not fs.exists(root):
            found = fs.glob(root)
        elif format_of(root) is None and fs.isdir(root):
            found = [path for path in fs.find(root) if not _is_hidden(path[len(root) :])]
        else:
            found = [root] if fs.exists(root) else []
        is_single = found == [root]
        if is_single and format_of(root) is None:
            raise UserError(f"input file {input!r} is of no known format; its name must end in {KNOWN} (text also .gz)")
        files = sorted(path for path in found if format_of(path))
        tars = [path for path in files if format_of(path) == "tar"]
        if not found and not fs.isdir(root):
            raise UserError(f"input {input!r} does not exist; give a file, a folder, a glob or a URL")
        if not files:
            raise UserError(
                f"input {input!r} holds no file of a known format; names must end in {KNOWN} (text also .gz)"
            )
        is_local = isinstance(fs, LocalFileSystem)
        warn_of_unread(tars, files)
        return [(path if is_local else fs.unstrip_protocol(path), fs.size(path) or 0) for path in tars or files]
    except store_errors(ValueError) as error:
        raise UserError(
            f"input {input!r} cannot be listed: {one_line(error)}; check the address, the credentials and their rights"
        ) from error


def warn_of_unread(tars: list[str], files: list[str]) -> None:
    """Name the files that tars beside them keep from being read, unless they belong to a tar by their name."""
    own = {tar.removesuffix(".tar") for tar in tars}
    unread = [path for path in files if tars and format_of(path) != "tar" and path.rsplit(".", 1)[0] not in own]
    if unread:
        logger.warning(
            "only the %d tars of the input are read, not the %d files beside them (first: %s); give the others by a glob",
            len(tars), len(unread), unread[0],
        )  # fmt: skip


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _parquet_rows(path: str, config: ReadConfig) -> int:
    """Rows of a parquet that has the columns needed."""
    with opened(path) as file:
        parquet = pq.ParquetFile(file)
        check_columns(path, parquet.schema_arrow.names, config)
        return int(parquet.metadata.num_rows)


def _cut_parquet(n_rows: int, n_before: int, rows_per_shard: int, most: int | None) -> list[Cut]:
    """As `_cut_text`, for a parquet of `n_rows` rows."""
    n = n_rows if most is None else min(n_rows, most)
    starts = range(-n_before % rows_per_shard, n, rows_per_shard)
    return [(row, 0, 1) for row in sorted({0, *starts, n})]


def _cut_text(path: str, config: ReadConfig, n_before: int, rows_per_shard: int, most: int | None) -> list[Cut]:
    """The first row, the rows at which a shard of the whole input begins, and the end, `most` rows on at the most.

    `n_before` rows came before this file, a text file or a tar.
    """
    format_ = format_of(path)
    assert format_ is not None, "list_files gives known formats only"
    cuts: list[Cut] = []
    n = 0
    with opened(path) as file:
        check_columns(path, columns(file, format_), config)
        offset = file.tell() if format_ in ("csv", "tsv") else 0  # behind the header
        for raw in raw_rows(format_, file, offset, 2 if offset else 1):
            if n == most:
                break
            if n == 0 or (n_before + n) % rows_per_shard == 0:
                cuts.append((n, raw.offset, raw.line))
            n += 1
    return [*cuts, (n, 0, 1)]
