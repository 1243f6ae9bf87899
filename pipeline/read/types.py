"""The types of reading: records, pieces of files, plans of shards, and the base classes of the input formats."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import IO, Any, ClassVar, Final, NamedTuple

from pipeline.read.config import ReadConfig
from pipeline.read.streams import open_stream

Record = dict[str, Any]
"""A row of an input file: values by column name."""
ColumnNames = Sequence[str] | Mapping[str, Any]
"""The columns of a file: their names, or a mapping of them to types, or to the values of a row."""
IMAGE: Final = "__image__"
"""Key of the encoded image in a record of a tar; chosen so that no column has this name."""

LACK: Final = "__lack__"
"""Key of what a sample without an image lacks, for messages."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of one file, with the position at which reading starts."""

    path: str
    first_row: int  # index in this file, from 0
    n_rows: int
    size: int  # size of the complete file in bytes, at the time of planning
    offset: int = 0  # byte of the decompressed file at which the first row starts; 0 for parquet, which seeks by row
    line: int = 1  # line at which the first row starts, from 1; for messages
    # ETag or time of modification at the time of planning, "" if unknown; tells whether the file changed until reading
    version: str = field(default="", compare=False)
    # the file as outputs name it (pipeline.read.listing.file_name); "": its path
    name: str = field(default="", compare=False)
    # the path below the folder of the input (pipeline.read.listing.below), whose folders may be columns; None: its path
    below: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Rows [first_row, first_row + n_rows) of the input, which become the output files of one shard.

    >>> from pipeline import ShardPlan
    >>> plan = ShardPlan(index=3, first_row=3000, n_rows=1000, pieces=())
    >>> plan.first_row + plan.n_rows
    4000
    """

    index: int
    first_row: int
    n_rows: int
    pieces: tuple[Piece, ...]
    # first rows of the files that were appended to the input of the job, up to those of this shard
    appends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "appends", tuple(self.appends))  # a list, if read from JSON


@dataclass(frozen=True, slots=True)
class Task:
    """Work on finished rows: its number, the rows that are lost if it fails, and what it is about."""

    index: int
    n_rows: int
    subject: Any


@dataclass(frozen=True)
class BadRecord:
    """A row that cannot be read, with the reason."""

    message: str


class BadRowError(ValueError):
    """A record that cannot become a row; the message is the reason."""


Load = Callable[[], Record | BadRecord]
"""Parses one row."""


class RawRow(NamedTuple):
    """A row before parsing: its position (byte and line) and the input of the format's parser, or a BadRecord."""

    offset: int
    line: int
    payload: Any


class Survey(NamedTuple):
    """The facts about an input file that planning finds."""

    n_rows: int
    columns: ColumnNames | None = None  # names, or a mapping of them to types; None: the format has none
    unread: Sequence[str] = ()  # names of the columns that are not read


class Format(ABC):
    """An input format: a subclass of Counted or Sequential, and an entry in FORMATS (pipeline.read.listing)."""

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    is_compressible: ClassVar[bool] = True
    is_text: ClassVar[bool] = False
    """True for text, of which `read.encoding` is the encoding."""
    has_images: ClassVar[bool] = False
    """True if a column may hold images, and is recognised by its name."""
    is_untyped: ClassVar[bool] = False
    """True if all values are texts, so that an empty one is a missing value."""

    @abstractmethod
    def loads(
        self, piece: Piece, config: ReadConfig, is_wanted: Callable[[int], bool]
    ) -> Iterator[tuple[int, Load | None]]:
        """Yield the line, 0 without lines, and the parser of each row of a piece.

        The parser of a row whose index in the file is not wanted may be None.
        """


class Counted(Format):
    """A format whose rows are counted without reading them, and found by their numbers."""

    @abstractmethod
    def count(self, path: str, config: ReadConfig) -> int:
        """Return the number of rows. Raises UserError, also for a file that lacks a required column."""

    def survey(self, path: str, config: ReadConfig, below: str = "") -> Survey:
        """Return what planning learns of a file, in one reading. Raises like `count`. `below` as in Piece."""
        return Survey(self.count(path, config))


class Sequential(Format):
    """A format whose rows are found by reading a file from its start, or from the first byte of any row."""

    def header(self, file: IO[bytes], config: ReadConfig) -> list[str]:
        """Read the column names at the start of a file, if the format has them there."""
        return []

    def columns(self, file: IO[bytes], config: ReadConfig) -> ColumnNames | None:
        """Return the columns, with the values of a row if they are known, for a check of the settings; None if they are not known.

        Raises LayoutError for a file whose rows are not where the settings say.
        """
        return self.header(file, config) or None

    @abstractmethod
    def find(self, file: IO[bytes], offset: int, line: int, n_columns: int, config: ReadConfig) -> Iterator[RawRow]:
        """Yield the rows from byte `offset`, at the start of `line`, without parsing them; 0 is before a header."""

    @abstractmethod
    def parse(self, payload: Any, header: list[str], file: IO[bytes], config: ReadConfig) -> Record | BadRecord:
        """Convert what `find` found."""

    def loads(
        self, piece: Piece, config: ReadConfig, is_wanted: Callable[[int], bool]
    ) -> Iterator[tuple[int, Load | None]]:
        with self.open(piece.path, config) as file:
            header = self.header(file, config)
            for raw in islice(self.find(file, piece.offset, piece.line, len(header), config), piece.n_rows):
                yield raw.line, partial(self.load, raw.payload, header, file, config)

    def open(self, path: str, config: ReadConfig) -> AbstractContextManager[IO[bytes]]:
        """Open a file: a context manager of its decompressed bytes, and of text in UTF-8."""
        return open_stream(path, config.encoding if self.is_text else "utf-8")

    def load(self, payload: Any, header: list[str], file: IO[bytes], config: ReadConfig) -> Record | BadRecord:
        """Return a BadRecord unchanged, and parse everything else."""
        return payload if isinstance(payload, BadRecord) else self.parse(payload, header, file, config)
