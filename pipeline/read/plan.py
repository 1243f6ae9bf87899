"""Planning: divide the rows of the input into shards, without reading their contents."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from types import MappingProxyType
from typing import IO, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from hypergrit_common.errors import UserError
from hypergrit_common.locations import Locations
from hypergrit_common.remote import map_concurrently
from hypergrit_common.text import counted
from pipeline.read.config import ReadConfig
from pipeline.read.listing import below, file_name, input_folders, input_format, list_files, use_format
from pipeline.read.roots import Roots
from pipeline.read.rows import check_columns
from pipeline.read.samples import Scan, Scanner, Tar, check_halves, damage_of, scan_tar, scan_tars
from pipeline.read.streams import DamagedFileError, LayoutError, check_text, input_errors
from pipeline.read.text import wide_encoding
from pipeline.read.types import Counted, Piece, Sequential, ShardPlan, Survey
from pipeline.read.understood import Readings, first_of

# The plans of the shards of an input as a sequence that computes them when asked: their number may be a million.


class CutFile(NamedTuple):
    """An input file, and the rows at which it is cut: its first row, those at which shards start, and its end.

    Only the first and the last are needed of files whose rows are found by their numbers.
    """

    path: str
    size: int
    cuts: Sequence[Sequence[int]]  # row, byte and line of each (pipeline.read.plan.Cut)
    version: str = ""  # Piece.version
    damage: str = ""  # the error at which the rows of a damaged file end
    reading: int | None = None  # how it was understood: index in `Readings.found`
    tally: Mapping[str, int] = MappingProxyType({})  # counts of a tar (schemas.job.InputFile)

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self.cuts[-1][0]


class Batch:
    """Consecutive files that were planned together: the first row of each, and where its shards start."""

    def __init__(
        self,
        files: Iterable[CutFile],
        rows_per_shard: int,
        first_shard: int = 0,
        first_row: int = 0,
        appends: tuple[int, ...] = (),
        folders: Sequence[str] = (),
    ) -> None:
        self.rows_per_shard, self.first_shard, self.first_row, self.appends, self.folders = (
            rows_per_shard, first_shard, first_row, appends, folders
        )  # fmt: skip
        self.files: list[tuple[str, int, str]] = []
        self.cuts: list[NDArray[np.int64] | None] = []
        bounds = [0]
        for file in files:
            cuts = np.asarray(file.cuts, np.int64)
            if cuts.ndim != 2 or cuts.shape[1] != 3:
                raise ValueError(f"{file.path}: the rows at which its shards start are damaged")
            self.files.append((file.path, file.size, file.version))
            self.cuts.append(None if isinstance(input_format(file.path), Counted) else cuts)
            bounds.append(bounds[-1] + int(cuts[-1, 0]))
        self.bounds = np.array(bounds, np.int64)
        self.n_rows = bounds[-1]

    def __len__(self) -> int:
        return -(-self.n_rows // self.rows_per_shard)

    def plan(self, number: int) -> ShardPlan:
        """Return the plan of a shard by its number in this batch."""
        first = number * self.rows_per_shard
        end = min(first + self.rows_per_shard, self.n_rows)
        pieces = tuple(self.pieces(first, end))
        return ShardPlan(self.first_shard + number, self.first_row + first, end - first, pieces, self.appends)

    def pieces(self, first: int, end: int) -> Iterator[Piece]:
        """Yield rows [first, end) of the batch by file."""
        file = int(np.searchsorted(self.bounds, first, side="right")) - 1
        while first < end:
            before, after = int(self.bounds[file]), int(self.bounds[file + 1])
            n_rows = min(end, after) - first
            if n_rows:  # else a file without rows
                path, size, version = self.files[file]
                offset, line = self.position(file, first - before)
                name = file_name(path, self.folders)
                under = below(path, self.folders)
                yield Piece(path, first - before, n_rows, size, offset, line, version, name, under)
            first, file = first + n_rows, file + 1

    def position(self, file: int, row: int) -> tuple[int, int]:
        """Return byte and line of a row of a file at which a shard starts. Raises ValueError for another row."""
        cuts = self.cuts[file]
        if cuts is None:
            return 0, 1
        place = int(np.searchsorted(cuts[:, 0], row))
        if place == len(cuts) or cuts[place, 0] != row:
            raise ValueError(f"{self.files[file][0]}: the start of row {row} is not known")
        return int(cuts[place, 1]), int(cuts[place, 2])


class ShardPlans(Sequence[ShardPlan]):
    """The plans of the shards of some batches, or of `chosen` ones by their numbers, each computed when asked for.

    A plan takes no memory for parquet, and 24 bytes for other formats.
    """

    def __init__(self, batches: Sequence[Batch], chosen: NDArray[np.int64] | None = None) -> None:
        self._batches, self._chosen = batches, chosen
        self._starts = np.cumsum([0, *map(len, batches)])

    def __len__(self) -> int:
        return int(self._starts[-1]) if self._chosen is None else len(self._chosen)

    @overload
    def __getitem__(self, place: int) -> ShardPlan: ...
    @overload
    def __getitem__(self, place: slice) -> "ShardPlans": ...
    def __getitem__(self, place: int | slice) -> "ShardPlan | ShardPlans":
        if isinstance(place, slice):
            return self.select(np.arange(len(self))[place])
        if not -len(self) <= place < len(self):
            raise IndexError(f"there are {len(self)} shards")
        place %= len(self)
        number = place if self._chosen is None else int(self._chosen[place])
        batch = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self._batches[batch].plan(number - int(self._starts[batch]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def indices(self) -> NDArray[np.int64]:
        """Return the indices of the shards."""
        parts = [np.arange(len(batch), dtype=np.int64) + batch.first_shard for batch in self._batches]
        found = np.concatenate([np.zeros(0, np.int64), *parts])
        return found if self._chosen is None else found[self._chosen]

    def without(self, shards: Collection[int]) -> "ShardPlans":
        """Return the plans of the shards that are not in `shards`."""
        is_left = np.isin(self.indices(), np.fromiter(shards, np.int64, len(shards)), invert=True)
        return self if is_left.all() else self.select(np.flatnonzero(is_left))

    def select(self, places: NDArray[np.int64]) -> "ShardPlans":
        """Return the plans at these places."""
        return ShardPlans(self._batches, places if self._chosen is None else self._chosen[places])


logger = logging.getLogger(__name__)


class Cut(NamedTuple):
    """A row of a file at which a piece starts or ends."""

    row: int  # index in the file, from 0
    offset: int = 0  # byte at which the row starts; 0 for parquet and for the end of the file
    line: int = 1  # line at which the row starts


Known = Mapping[str, tuple[int, Sequence[Sequence[int]], str]]
"""Cuts of an earlier run: path -> (number of rows before the file, cuts, damage)."""


def plan_shards(input: Locations, rows_per_shard: int, limit: int | None, config: ReadConfig) -> list[ShardPlan]:
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
    use_format(config.format)
    files = list_files(input)
    folders = input_folders(input, (), files)
    cut = cut_files(files, rows_per_shard, limit, config, folders=folders)
    plans = ShardPlans([Batch(cut, rows_per_shard, folders=folders)])
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
    readings: Readings | None = None,
    folders: Sequence[str] = (),
) -> list[CutFile]:
    """Find the rows of `files`, pairs (path, size), at which shards start; files after the first `limit` rows are left out.

    The files of `known` are not opened if the number of rows before them is the same, and parquet files never. `scan`
    finds the samples of the tars among the others. Of a damaged file, the rows before the damage are planned; if there
    are none, `read.skip_damaged` decides. `readings` takes note of how files
    were understood; `folders` are those of the input. Raises UserError for a file that is unreadable or lacks a required column.
    """
    use_format(config.format)
    Roots(config.image_roots)  # checks them
    new = [(path, size) for path, size in files if path not in known]
    with_counts = [(path, below(path, folders)) for path, _ in new if isinstance(input_format(path), Counted)]
    tars = [(path, size, below(path, folders)) for path, size in new if isinstance(input_format(path), Tar)]
    cut: list[CutFile] = []
    halves: list[tuple[str, str, bool]] = []
    total = 0
    # The results are in the order of the files. Those of files after the limit are never consumed, so that their errors
    # are not raised.
    with (
        closing(map_concurrently(partial(_survey, config=config), with_counts)) as counts,
        closing(scan(tars, config, limit)) as scans,
    ):
        for path, size in files:
            if total == limit:
                break
            max_rows = None if limit is None else limit - total
            n_before, cuts, damage = known.get(path, (None, [], ""))
            under, reading, tally = below(path, folders), None, CutFile._field_defaults["tally"]
            match input_format(path):
                case Counted():
                    survey, damage = (Survey(cuts[-1][0]), damage) if cuts else next(counts)
                    n_rows = survey.n_rows if max_rows is None else min(survey.n_rows, max_rows)
                    if readings and n_rows and path not in known:
                        load = partial(first_of, path, size, 0, config)
                        reading = readings.add(path, survey.columns, survey.unread, load, under)
                    cuts = [Cut(0), Cut(n_rows)]
                case Tar() if n_before != total:
                    found = scan_tar(path, size, under, config, max_rows) if path in known else next(scans)
                    cuts, damage = _cut_tar(found, total, rows_per_shard, max_rows)
                    tally = found.tally
                    halves += [(path, *found.half)] if found.half else []
                    check_halves(halves)
                    if readings and len(found.starts):
                        reading = readings.add(
                            path, None, (), partial(first_of, path, size, int(found.starts[0]), config), under
                        )
                case Sequential() as kind if n_before != total:
                    cuts, damage, reading = _cut_text(
                        path, under, kind, config, total, rows_per_shard, max_rows, readings
                    )
            if damage:
                logger.warning("only %s of a damaged file can be read: %s", counted(cuts[-1][0], "row"), damage)
            cut.append(CutFile(path, size, tuple(cuts), damage=damage, reading=reading, tally=tally))
            total += cut[-1].n_rows
    return cut


def _survey(file: tuple[str, str], config: ReadConfig) -> tuple[Survey, str]:
    """The number of rows of a file with its columns, and its damage. Raises UserError if it lacks a required column."""
    path, under = file
    kind = input_format(path)
    assert isinstance(kind, Counted)
    try:
        return kind.survey(path, config, under), ""
    except DamagedFileError as error:
        return Survey(0), damage_of(error, 0, config)


def _cut_tar(found: Scan, n_before: int, rows_per_shard: int, max_rows: int | None) -> tuple[list[Cut], str]:
    """The cuts of a tar, and its damage unless that is after the first `max_rows` rows; like `_cut_text`."""
    n_found = len(found.starts)
    n = n_found if max_rows is None else min(n_found, max_rows)
    rows = sorted({0, *range(-n_before % rows_per_shard, n, rows_per_shard)}) if n else []
    damage = found.damage if n == n_found else ""
    return [*(Cut(row, int(found.starts[row]), 0) for row in rows), Cut(n)], damage


def _cut_text(
    path: str, under: str, kind: Sequential, config: ReadConfig, n_before: int, rows_per_shard: int, max_rows: int | None,
    readings: Readings | None
) -> tuple[list[Cut], str, int | None]:  # fmt: skip
    """The cuts of a file, its damage, and its reading. Cut are its first row, the rows at which shards start, and its end.

    The input has `n_before` rows in previous files; rows after the first `max_rows` of this file are ignored. The rows of a
    text have no second count: `find` gives the same ones here and at reading, where another number is an error, and each
    line that is not blank is a row, also a damaged one, or a part of a row with line ends in quotes.
    """
    cuts: list[Cut] = []
    n, damage, reading = 0, "", None
    try:
        with input_errors(path), kind.open(path, config) as file:
            check_text(file)
            if kind.is_text:
                check_encoding(file, config)
            names = kind.columns(file, config)
            file.seek(0)
            header = kind.header(file, config)
            check_columns(path, names, config, kind, under)
            for raw in kind.find(file, 0, 1, 0, config):
                if n == max_rows:
                    break
                if n == 0 and readings:
                    reading = readings.add(
                        path, names, (), partial(kind.load, raw.payload, header, file, config), under
                    )
                if n == 0 or (n_before + n) % rows_per_shard == 0:
                    cuts.append(Cut(n, raw.offset, raw.line))
                n += 1
    except DamagedFileError as error:
        damage = damage_of(error, n, config)
    return [*cuts, Cut(n)], damage, reading


def check_encoding(file: IO[bytes], config: ReadConfig) -> None:
    """Raise LayoutError for a text in UTF-16 or UTF-32 that `read.encoding` does not name."""
    file.seek(0)
    wide = wide_encoding(file.read(4))
    file.seek(0)
    if wide:
        raise LayoutError(
            f"it looks like {wide}, and read.encoding is {config.encoding}; set read.encoding, such as {wide}"
        )
