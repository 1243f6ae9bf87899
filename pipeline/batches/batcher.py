"""Rows that wait for a network until a batch is full.

A row is a generator. It yields what it asks of networks, and goes on with the answers when all of them are there. All
is done in the order in which rows are added, so that batches depend on the rows alone, and not on time.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

MAX_BYTES: Final = 512_000_000
"""Bytes of images that may wait. Beyond it, the batch that has waited longest is computed although it is not full."""

MAX_WAITING: Final = 4
"""Questions in a batch, in multiples of its size, with which it is not filled any more: many may share an answer."""


class Network(Protocol):
    """A network that answers in batches. `stage` is the stage whose time it takes."""

    stage: str
    batch_size: int

    def submit(self, batch: "Batch") -> "list[tuple[Batch, list[Any]]]":
        """Compute a batch; return the batches that are finished, each with an answer per question."""
        ...

    def drain(self) -> "list[tuple[Batch, list[Any]]]":
        """Finish all batches."""
        ...


@dataclass(frozen=True)
class Ask:
    """A question to a network. Items of the same `key` share batches; equal `is_shared` items get one answer."""

    network: Network
    key: Hashable
    item: Any
    is_shared: bool = False


@dataclass(frozen=True)
class Asked:
    """The questions of a row, and the bytes that it holds until they are answered."""

    asks: Sequence[Ask]
    nbytes: int


@dataclass(eq=False)
class Row:
    """A row on its way; `end` receives its result, and `spend` the seconds that it takes of a stage."""

    steps: Generator[Asked, list[Any], Any]
    end: Callable[[Any], None]
    spend: Callable[[str, float], None]
    answers: list[Any] = field(default_factory=list)
    n_open: int = 0
    nbytes: int = 0


@dataclass(eq=False)
class Slot:
    """A place in a batch, with the rows that wait for its answer, and the index of the question in each."""

    item: Any
    waiting: list[tuple[Row, int]] = field(default_factory=list)
    is_answered: bool = False
    answer: Any = None


Batch = list[Slot]


class Batcher:
    """Runs rows. The first of the `networks` has precedence when batches that are not full have to be computed."""

    def __init__(self, networks: Sequence[Network], max_bytes: int = MAX_BYTES) -> None:
        self.networks, self.max_bytes = networks, max_bytes
        self.held = 0
        self.n_items, self.n_batches = Counter[str](), Counter[str]()  # by stage
        self._bins: dict[tuple[int, Hashable], Batch] = {}  # the oldest first
        self._n_waiting: dict[tuple[int, Hashable], int] = {}  # questions in each
        self._shared: dict[tuple[int, Hashable], Slot] = {}
        self._ready: deque[Row] = deque()

    def add(self, row: Row) -> None:
        """Start a row, and compute the batches that it fills."""
        self._ready.append(row)
        self._run()
        while self.held > self.max_bytes and self._bins:
            self._submit(next(iter(self._bins)))
            self._run()

    def flush(self) -> None:
        """Finish all rows."""
        while self._flush_one():
            self._run()

    def _flush_one(self) -> bool:
        for i, network in enumerate(self.networks):
            key = next((key for key in self._bins if key[0] == i), None)
            if key is not None:
                self._submit(key)
                return True
            if finished := network.drain():
                self._settle(finished)
                return True
        return False

    def _run(self) -> None:
        while self._ready:
            row = self._ready.popleft()
            self.held -= row.nbytes
            row.nbytes = 0
            try:
                asked = row.steps.send(row.answers or None)  # type: ignore[arg-type]  # None starts a generator
            except StopIteration as stop:
                row.end(stop.value)
            else:
                self._ask(row, asked)

    def _ask(self, row: Row, asked: Asked) -> None:
        row.answers, row.n_open, row.nbytes = [None] * len(asked.asks), len(asked.asks), asked.nbytes
        self.held += asked.nbytes
        touched: dict[tuple[int, Hashable], int] = {}
        for index, ask in enumerate(asked.asks):
            network = self.networks.index(ask.network)
            key = network, ask.key
            known = self._shared.get((network, ask.item)) if ask.is_shared else None
            slot = known or Slot(ask.item)
            if slot.is_answered:
                self._answer(row, index, slot.answer)
                continue
            slot.waiting.append((row, index))
            if known is None:
                if ask.is_shared:
                    self._shared[network, ask.item] = slot
                self._bins.setdefault(key, []).append(slot)
            self._n_waiting[key] = self._n_waiting.get(key, 0) + 1
            touched[key] = ask.network.batch_size
        for key, size in touched.items():
            while len(self._bins.get(key, ())) >= size:
                self._submit(key)
            if key in self._bins and self._n_waiting[key] > MAX_WAITING * size:
                self._submit(key)

    def _submit(self, key: tuple[int, Hashable]) -> None:
        """Compute the oldest batch of a key."""
        network, start = self.networks[key[0]], time.perf_counter()
        waiting = self._bins.pop(key)
        batch, rest = waiting[: network.batch_size], waiting[network.batch_size :]
        if rest:
            self._bins[key] = rest
        self._n_waiting[key] = sum(len(slot.waiting) for slot in rest)
        self.n_items[network.stage] += len(batch)
        self.n_batches[network.stage] += 1
        finished = network.submit(batch)
        seconds = (time.perf_counter() - start) / len(batch)
        for slot in batch:
            slot.waiting[0][0].spend(network.stage, seconds)
        self._settle(finished)

    def _settle(self, finished: Sequence[tuple[Batch, list[Any]]]) -> None:
        for batch, answers in finished:
            for slot, answer in zip(batch, answers, strict=True):
                slot.is_answered, slot.answer, slot.item = True, answer, None
                for row, index in slot.waiting:
                    self._answer(row, index, answer)
                slot.waiting.clear()

    def _answer(self, row: Row, index: int, answer: Any) -> None:
        row.answers[index] = answer
        row.n_open -= 1
        if not row.n_open:
            self._ready.append(row)
