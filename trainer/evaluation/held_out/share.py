"""Evaluate many items in bounded memory: read by worker processes, shared over the ranks.

The items are divided into units of a few dozen. In each round, every rank reads and embeds some units, and all ranks
receive the results of all. Only results are kept, not the images. A signal on any rank ends the evaluation on all.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from torch.utils.data import Dataset

from hypergrit_common.errors import UserError
from trainer.data.workers import next_result, read_ahead
from trainer.distributed.gather import all_ranks, rank, world_size

UNIT: Final = 64
"""Maximum number of items of a unit."""
UNITS_PER_ROUND: Final = 8
"""Units of each rank in a round."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class InterruptedEvaluationError(Exception):
    """A signal on one of the ranks ended the evaluation."""


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Settings of reading and embedding. `precision` returns the context in which the towers compute."""

    batch_size: int = UNIT  # maximum number of items that a tower processes at once
    workers: int = 0  # processes that read items; 0: this process
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext
    is_stopping: Callable[[], bool] = bool


class Failure(NamedTuple):
    """The message of a UserError in a worker, or of its death."""

    message: str


class Units(Dataset[Item | Failure], Generic[Item]):
    """Reads units of items. A UserError is returned, because DataLoader adds a traceback to errors that are raised."""

    def __init__(self, units: Sequence[range], read: Callable[[range], Item]) -> None:
        self.units, self.read = units, read

    def __getitem__(self, index: int) -> Item | Failure:
        try:
            return self.read(self.units[index])
        except UserError as error:
            return Failure(str(error))

    def __len__(self) -> int:
        return len(self.units)


def map_shared(
    n: int, read: Callable[[range], Item], compute: Callable[[Item], Result], sharing: Sharing
) -> Iterator[Result]:
    """Yield `compute(read(unit))` for consecutive units of the items 0 to n - 1, in order and on all ranks. Collective.

    `read` runs in a worker process and takes the numbers of the items; results are sent between ranks as objects, so
    tensors must be on the CPU. Raises UserError if `read` raises it or a worker process dies on any rank, and
    InterruptedEvaluationError.
    """
    size = min(UNIT, sharing.batch_size)
    units = [range(start, min(start + size, n)) for start in range(0, n, size)]
    per_round = UNITS_PER_ROUND * world_size()
    first = rank() * UNITS_PER_ROUND
    rounds = [units[start : start + per_round] for start in range(0, len(units), per_round)]
    mine = [part[first : first + UNITS_PER_ROUND] for part in rounds]
    own = [unit for part in mine for unit in part]
    items = read_ahead(Units(own, read), min(sharing.workers, len(own)))
    for part in mine:
        results, failure = [], ""
        for _ in part:
            item = next_item(items)
            if sharing.is_stopping() or isinstance(item, Failure):
                failure = item.message if isinstance(item, Failure) else ""
                break
            results.append(compute(item))
        every = all_ranks((results, failure, sharing.is_stopping()))
        if any(is_stopping for *_, is_stopping in every):
            raise InterruptedEvaluationError
        if message := next((message for _, message, _ in every if message), ""):
            raise UserError(message)
        for found, *_ in every:
            yield from found


def next_item(items: Iterator[Item | Failure]) -> Item | Failure:
    """Return the next item. The death of a worker process is a failure too, of which all ranks learn."""
    try:
        return next_result(items)
    except UserError as error:
        return Failure(f"image_folders or shards: {error}")
