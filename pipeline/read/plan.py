"""Planning: divide the rows of the input into shards, without reading their contents."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from common.errors import UserError
from common.files import is_broken_link
from common.remote import map_concurrently, one_line, open_store, store_errors
from common.time_limits import reported
from common.urls import check_no_user
from pipeline.read.config import ReadConfig
from pipeline.read.formats import SUFFIXES, DamagedFileError, column_names, format_of, open_input, raw_rows
from pipeline.read.stage import check_columns
from pipeline.read.types import Piece, ShardPlan

logger = logging.getLogger(__name__)

KNOWN: Final = ", ".join(SUFFIXES)


class Cut(NamedTuple):
    """A row of a file at which a piece starts or ends."""

    row: int  # index in the file, from 0
    offset: int = 0  # byte at which the row starts; 0 for parquet and for the end of the file
    line: int = 1  # line at which the row starts


class CutFile(NamedTuple):
    """An input file, and the rows at which it is cut: its first row, those at which shards start, and its end."""

    path: str
    size: int
    cuts: tuple[Cut, ...]
    version: str = ""  # Piece.version
    damage: str = ""  # the error at which the rows of a damaged file end


Known = Mapping[str, tuple[int, Sequence[Cut], str]]
"""Cuts of an earlier run: path -> (number of rows before the file, cuts, damage)."""


def plan_shards(input: str, rows_per_shard: int, limit: int | None, config: ReadConfig) -> list[ShardPlan]:
    r"""Divide the rows of all files of `input`, in the order of the file names, into shards of `rows_per_shard` rows.

    The last shard may be shorter; rows after the first `limit` are ignored. Each file is opened once: planning reads
    the metadata of a parquet file, counts the lines of a text file, and reads the headers of a tar. Raises UserError
    for an input that is missing, empty or unreadable, or that lacks a required column.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from pipeline import ReadConfig, plan_shards
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "pairs.csv")
    ...     _ = file.write_text("url,caption\n" + "http://example.org/dog.jpg,a dog\n" * 5)
    ...     plans = plan_shards(str(file), rows_per_shard=2, limit=None, config=ReadConfig())
    >>> [(plan.first_row, plan.n_rows) for plan in plans]
    [(0, 2), (2, 2), (4, 1)]
    """
    cut = cut_files(list_files(input), rows_per_shard, limit, config)
    plans = make_plans(cut, rows_per_shard)
    if not plans:
        raise UserError(f"input {input!r} holds no rows; give files with at least one row")
    return plans


def cut_files(
    files: Sequence[tuple[str, int]],
    rows_per_shard: int,
    limit: int | None,
    config: ReadConfig,
    known: Known = MappingProxyType({}),
) -> list[CutFile]:
    """Find the rows of `files`, pairs (path, size), at which shards start; files after the first `limit` rows are left out.

    The files of `known` are not opened if the number of rows before them is the same, and parquet files never. Of a
    damaged file, the rows before the damage are planned; if there are none, `read.skip_damaged` decides. Raises
    UserError for a file that is unreadable or lacks a required column.
    """
    parquets = [path for path, _ in files if format_of(path) == "parquet" and path not in known]
    cut: list[CutFile] = []
    total = 0
    # The results are in the order of the files. Those of files after the limit are never consumed, so that their errors
    # are not raised.
    with closing(map_concurrently(partial(_parquet_rows, config=config), parquets)) as parquet_rows:
        for path, size in files:
            if total == limit:
                break
            max_rows = None if limit is None else limit - total
            n_before, cuts, damage = known.get(path, (None, [], ""))
            if format_of(path) == "parquet":
                n_rows, damage = (cuts[-1].row, damage) if cuts else next(parquet_rows)
                cuts = _cut_parquet(n_rows, total, rows_per_shard, max_rows)
            elif n_before != total:
                cuts, damage = _cut_text(path, config, total, rows_per_shard, max_rows)
            if damage:
                logger.warning("only the first %d rows of a damaged file are read: %s", cuts[-1].row, damage)
            cut.append(CutFile(path, size, tuple(cuts), damage=damage))
            total += cuts[-1].row
    return cut


def make_plans(
    files: Iterable[CutFile],
    rows_per_shard: int,
    first_shard: int = 0,
    first_row: int = 0,
    appends: tuple[int, ...] = (),
) -> list[ShardPlan]:
    """Divide the rows of `files` into shards, the first of which has the index `first_shard` and starts at `first_row`."""
    pieces: list[list[Piece]] = []
    total = 0
    for file in files:
        for start, end in pairwise(file.cuts):
            shard = total // rows_per_shard
            if shard == len(pieces):
                pieces.append([])
            n_rows = end.row - start.row
            pieces[shard].append(Piece(file.path, start.row, n_rows, file.size, start.offset, start.line, file.version))
            total += n_rows
    return [
        ShardPlan(
            first_shard + i,
            first_row + i * rows_per_shard,
            sum(piece.n_rows for piece in shard),
            tuple(shard),
            appends,
        )
        for i, shard in enumerate(pieces)
    ]


def list_files(input: str) -> list[tuple[str, int]]:
    """List the input files as sorted pairs (path, size in bytes).

    `input` is a file, folder or glob, as a local path or an fsspec URL. In a folder with tars, other files are ignored:
    img2dataset writes a parquet file with the same rows next to each tar. Raises UserError if there are no input files,
    if they cannot be listed, and for a URL with a user name or a password, which errors of stores repeat in other forms.
    """
    if "://" in input:
        check_no_user("input", input)
    with reported(f"waiting for the list of {input}") if "://" in input else nullcontext():
        return _list_files(input)


def _list_files(input: str) -> list[tuple[str, int]]:
    if "::" in input and os.path.lexists(input):
        raise chain_error(input)
    fs, root = open_store(input)
    try:
        fs.invalidate_cache()  # other machines may have added files since this process listed them
        if any(sign in root for sign in "*?[") and not fs.exists(root):
            found = fs.glob(root)
        elif format_of(root) is None and fs.isdir(root):
            found = [path for path in fs.find(root) if not _is_hidden(path[len(root) :])]
        else:
            found = [root] if fs.exists(root) else []
        is_single = found == [root]
        if is_single and format_of(root) is None:
            raise UserError(
                f"input file {input!r} has no known format; its name must end in {KNOWN} (text files also in .gz)"
            )
        files = sorted(path for path in found if format_of(path))
        tars = [path for path in files if format_of(path) == "tar"]
        if not found and not fs.isdir(root):
            raise UserError(f"input {input!r} does not exist; give a file, a folder, a glob or a URL")
        if not files:
            raise UserError(
                f"input {input!r} holds no file of a known format; names must end in {KNOWN} (text files also in .gz)"
            )
        is_local = isinstance(fs, LocalFileSystem)
        warn_about_ignored(tars, files)
        check_names(tars or files)
        return [
            (
                path if is_local else fs.unstrip_protocol(path),
                0 if is_local and is_broken_link(path) else fs.size(path) or 0,
            )
            for path in tars or files
        ]
    except store_errors(ValueError) as error:
        raise UserError(
            f"input {input!r} cannot be listed: {one_line(error)}; check the URL, the credentials and their permissions"
        ) from error


def check_names(paths: Sequence[str]) -> None:
    """Raise UserError for a name that is not UTF-8, which no record can hold, or that fsspec takes for a chain of URLs."""
    for path in paths:
        if path != (readable := path.encode(errors="backslashreplace").decode()):
            raise UserError(f"the name of the input file {readable} is not valid UTF-8; rename the file")
        if "::" in path:
            raise chain_error(path)


def chain_error(path: str) -> UserError:
    """Return the error for a file whose name has a double colon."""
    readable = path.encode(errors="backslashreplace").decode()
    return UserError(
        f"the name of the input file {readable} contains '::', which separates chained URLs; rename the file or folder"
    )


def warn_about_ignored(tars: list[str], files: list[str]) -> None:
    """Log a warning about files that are ignored because the input has tars, except files named like a tar."""
    stems = {tar.removesuffix(".tar") for tar in tars}
    ignored = [path for path in files if tars and format_of(path) != "tar" and path.rsplit(".", 1)[0] not in stems]
    if ignored:
        logger.warning(
            "only the %d tars of the input are read, not the %d files beside them (first: %s); "
            "to read those, give input= as a glob that matches them",
            len(tars), len(ignored), ignored[0],
        )  # fmt: skip


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _parquet_rows(path: str, config: ReadConfig) -> tuple[int, str]:
    """The number of rows of a parquet file, and its damage. Raises UserError if it lacks a required column."""
    try:
        with open_input(path) as file:
            parquet = pq.ParquetFile(file)
            check_columns(path, parquet.schema_arrow.names, config)
            return int(parquet.metadata.num_rows), ""
    except DamagedFileError as error:
        return 0, _damage(error, 0, config)


def _damage(error: DamagedFileError, n_rows: int, config: ReadConfig) -> str:
    """The description of a damaged file. Raises `error` if it has no rows and such files are not left out."""
    if n_rows == 0 and not config.skip_damaged:
        raise DamagedFileError(f"{error}, or leave such files out with read.skip_damaged=true") from error
    return str(error)


def _cut_parquet(n_rows: int, n_before: int, rows_per_shard: int, max_rows: int | None) -> list[Cut]:
    """The cuts of a parquet file with `n_rows` rows; like `_cut_text`."""
    n = n_rows if max_rows is None else min(n_rows, max_rows)
    starts = range(-n_before % rows_per_shard, n, rows_per_shard)
    return [Cut(row) for row in sorted({0, *starts, n})]


def _cut_text(
    path: str, config: ReadConfig, n_before: int, rows_per_shard: int, max_rows: int | None
) -> tuple[list[Cut], str]:
    """The cuts of a text file or tar, and its damage: its first row, the rows at which shards start, and its end.

    The input has `n_before` rows in previous files; rows after the first `max_rows` of this file are ignored.
    """
    format_ = format_of(path)
    assert format_ is not None, "list_files returns only files of known formats"
    cuts: list[Cut] = []
    n, damage = 0, ""
    try:
        with open_input(path) as file:
            names = column_names(file, format_, config)
            check_columns(path, names, config)
            offset = file.tell() if format_ in ("csv", "tsv") else 0  # the end of the header
            file.seek(0)
            line = 1 + file.read(offset).count(b"\n")  # blank lines may precede the header
            for raw in raw_rows(format_, file, config, offset, line, len(names or ())):
                if n == max_rows:
                    break
                if n == 0 or (n_before + n) % rows_per_shard == 0:
                    cuts.append(Cut(n, raw.offset, raw.line))
                n += 1
    except DamagedFileError as error:
        damage = _damage(error, n, config)
    return [*cuts, Cut(n)], damage
