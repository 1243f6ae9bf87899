"""The plans of the shards of an input as a sequence that computes them when asked: their number may be a million."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from pipeline.read.formats import format_of
from pipeline.read.types import Piece, ShardPlan

COUNTED: Final = ("parquet", "folder")
"""Formats whose rows are counted without reading them, and found by their numbers."""


class CutFile(NamedTuple):
    """An input file, and the rows at which it is cut: its first row, those at which shards start, and its end.

    Only the first and the last are needed of files whose rows are found by their numbers.
    """

    path: str
    size: int
    cuts: Sequence[Sequence[int]]  # row, byte and line of each (pipeline.read.plan.Cut)
    version: str = ""  # Piece.version
    damage: str = ""  # the error at which the rows of a damaged file end

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
    ) -> None:
        self.rows_per_shard, self.first_shard, self.first_row, self.appends = (
            rows_per_shard, first_shard, first_row, appends
        )  # fmt: skip
        self.files: list[tuple[str, int, str]] = []
        self.cuts: list[NDArray[np.int64] | None] = []
        bounds = [0]
        for file in files:
            cuts = np.asarray(file.cuts, np.int64)
            if cuts.ndim != 2 or cuts.shape[1] != 3:
                raise ValueError(f"{file.path}: the rows at which its shards start are damaged")
            self.files.append((file.path, file.size, file.version))
            self.cuts.append(None if format_of(file.path) in COUNTED else cuts)
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
                yield Piece(path, first - before, n_rows, size, *self.position(file, first - before), version)
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
