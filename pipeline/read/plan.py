"""Planning: divide the rows of the input into shards, without reading their contents."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow.parquet as pq

from common.errors import UserError
from common.remote import map_concurrently
from pipeline.read.columns import check_columns, check_image_type
from pipeline.read.config import ReadConfig
from pipeline.read.folders import list_folder
from pipeline.read.formats import DamagedFileError, compression_of, format_of, open_input
from pipeline.read.listing import list_files
from pipeline.read.plans import COUNTED, Batch, CutFile, ShardPlans
from pipeline.read.roots import Roots
from pipeline.read.rows import column_names, raw_rows
from pipeline.read.streams import is_utf8
from pipeline.read.tars import Scan, Scanner, damage_of, scan_tar, scan_tars
from pipeline.read.types import ShardPlan

logger = logging.getLogger(__name__)

SAMPLE_ROWS: Final = 1000
"""Rows of a JSON file in which the columns of `read.where` are looked for."""


class Cut(NamedTuple):
    """A row of a file at which a piece starts or ends."""

    row: int  # index in the file, from 0
    offset: int = 0  # byte at which the row starts; 0 for parquet and for the end of the file
    line: int = 1  # line at which the row starts


Known = Mapping[str, tuple[int, Sequence[Sequence[int]], str]]
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
    return list(plans)


def cut_files(
    files: Sequence[tuple[str, int]],
    rows_per_shard: int,
    limit: int | None,
    config: ReadConfig,
    known: Known = MappingProxyType({}),
    scan: Scanner = scan_tars,
) -> list[CutFile]:
    """Find the rows of `files`, pairs (path, size), at which shards start; files after the first `limit` rows are left out.

    The files of `known` are not opened if the number of rows before them is the same, and parquet files never. `scan`
    finds the samples of the tars among the others. Of a damaged file, the rows before the damage are planned; if there
    are none, `read.skip_damaged` decides. Raises UserError for a file that is unreadable or lacks a required column.
    """
    Roots(config.image_roots)  # checks them
    new = [(path, size, format_of(path)) for path, size in files if path not in known]
    counted = [path for path, _, kind in new if kind in COUNTED]
    tars = [(path, size) for path, size, kind in new if kind == "tar"]
    cut: list[CutFile] = []
    total = 0
    # The results are in the order of the files. Those of files after the limit are never consumed, so that their errors
    # are not raised.
    with (
        closing(map_concurrently(partial(_count_rows, config=config), counted)) as counts,
        closing(scan(tars, config, limit)) as scans,
    ):
        for path, size in files:
            if total == limit:
                break
            max_rows = None if limit is None else limit - total
            n_before, cuts, damage = known.get(path, (None, [], ""))
            if format_of(path) in COUNTED:
                n_rows, damage = (cuts[-1][0], damage) if cuts else next(counts)
                cuts = [Cut(0), Cut(n_rows if max_rows is None else min(n_rows, max_rows))]
            elif format_of(path) == "tar" and n_before != total:
                found = scan_tar(path, size, config, max_rows) if path in known else next(scans)
                cuts, damage = _cut_tar(found, total, rows_per_shard, max_rows)
            elif n_before != total:
                cuts, damage = _cut_text(path, config, total, rows_per_shard, max_rows)
            if damage:
                logger.warning("only the first %d rows of a damaged file are read: %s", cuts[-1][0], damage)
            cut.append(CutFile(path, size, tuple(cuts), damage=damage))
            total += cut[-1].n_rows
    return cut


def make_plans(
    files: Iterable[CutFile],
    rows_per_shard: int,
    first_shard: int = 0,
    first_row: int = 0,
    appends: tuple[int, ...] = (),
) -> ShardPlans:
    """Divide the rows of `files` into shards, the first of which has the index `first_shard` and starts at `first_row`."""
    return ShardPlans([Batch(files, rows_per_shard, first_shard, first_row, appends)])


def _count_rows(path: str, config: ReadConfig) -> tuple[int, str]:
    """The number of rows of a parquet file or folder, and its damage. Raises UserError if it lacks a required column."""
    if format_of(path) == "folder":
        return len(list_folder(path).images), ""
    try:
        with open_input(path) as file:
            parquet = pq.ParquetFile(file)
            check_columns(path, parquet.schema_arrow.names, config)
            check_image_type(path, parquet.schema_arrow, config)
            return int(parquet.metadata.num_rows), ""
    except DamagedFileError as error:
        return 0, damage_of(error, 0, config)


def _cut_tar(found: Scan, n_before: int, rows_per_shard: int, max_rows: int | None) -> tuple[list[Cut], str]:
    """The cuts of a tar, and its damage unless that is after the first `max_rows` rows; like `_cut_text`."""
    n_found = len(found.starts)
    n = n_found if max_rows is None else min(n_found, max_rows)
    rows = sorted({0, *range(-n_before % rows_per_shard, n, rows_per_shard)}) if n else []
    damage = found.damage if n == n_found else ""
    return [*(Cut(row, int(found.starts[row]), 0) for row in rows), Cut(n)], damage


def _cut_text(
    path: str, config: ReadConfig, n_before: int, rows_per_shard: int, max_rows: int | None
) -> tuple[list[Cut], str]:
    """The cuts of a text file, and its damage: its first row, the rows at which shards start, and its end.

    The input has `n_before` rows in previous files; rows after the first `max_rows` of this file are ignored.
    """
    format_ = format_of(path)
    assert format_ is not None, "list_files returns only files of known formats"
    is_stream = bool(compression_of(path)) or not is_utf8(config.encoding)
    if format_ == "json" and config.json_layout == "columns" and is_stream:
        raise UserError(f"{path}: read.json_layout=columns needs a file in UTF-8 without compression; convert it")
    cuts: list[Cut] = []
    n, damage = 0, ""
    try:
        with open_input(path, encoding=config.encoding) as file:
            names = column_names(file, format_, config, SAMPLE_ROWS if config.selection else 1)
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
        damage = damage_of(error, n, config)
    return [*cuts, Cut(n)], damage
