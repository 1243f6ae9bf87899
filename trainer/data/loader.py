"""Batches without end, the same for a seed whatever the number of workers, from any place on."""

import logging
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from common.errors import UserError, prefixed
from common.shards import list_shards
from trainer.batch import Batch
from trainer.data.config import DataConfig
from trainer.data.examples import BatchBuilder, Report
from trainer.data.index import build_index
from trainer.data.order import Order
from trainer.data.probe import probe
from trainer.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

KEY: Final = "data.shards"
LOGGED: Final = 5  # bad samples named one by one; then only each time their number has doubled
Task = tuple[int, NDArray[np.int64]]


class Tasks(Dataset[tuple[dict[str, Any], Report]]):
    """Batches by (place, samples), made in whichever process asks. Errors meant for the user travel in the report."""

    def __init__(self, maker: BatchBuilder) -> None:
        self.maker = maker

    def __getitem__(self, task: Task) -> tuple[dict[str, Any], Report]:
        try:
            return self.maker.make(*task)
        except UserError as error:
            return {}, Report(error=str(error))


class Loader:
    """This rank's part of each batch: `batch` pairs, `world_size` times that over all ranks.

    `counts` has "samples" handed out, "bad/REASON", and "damaged_shards". No batch has a sample twice, but for the one
    in which an epoch ends and the next begins, and for what replaces bad samples.
    """

    def __init__(
        self,
        config: DataConfig,
        *,
        tokenizer: Tokenizer,
        size_px: int,
        batch: int,
        needs: frozenset[str],
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Find the samples. Raises UserError if there are none, or if none has what is needed."""
        self.config, self.batch, self.rank, self.world_size = config, batch, rank, world_size
        with prefixed(f"{KEY}: "):
            index = build_index(list_shards(config.shards), config.index_folder, config.workers, rank, world_size)
            layout = probe(index, config.layout, needs)
        self.maker = BatchBuilder(
            config=config, layout=layout, index=index, tokenizer=tokenizer, size_px=size_px, needs=needs
        )
        self.order = Order(index.counts, config.seed, config.shuffle_buffer)
        self.place = 0  # samples that all ranks have had
        self.counts: Counter[str] = Counter(samples=0, damaged_shards=sum(bool(s.problem) for s in index.shards))
        self.running: list[Iterator[Batch]] = []
        if index.n_samples < batch * world_size:
            logger.warning(
                "%d samples are fewer than a batch of %d: it holds some of them more than once",
                index.n_samples,
                batch * world_size,
            )

    @property
    def n_samples(self) -> int:
        return self.order.n_samples

    @property
    def epoch(self) -> float:
        """How often the data were seen."""
        return self.place / self.n_samples

    def __iter__(self) -> Iterator[Batch]:
        """Batches from the current position on. A second iterator goes on where the first one is."""
        self.close()
        batches = self.batches()
        self.running.append(batches)
        return batches

    def batches(self) -> Iterator[Batch]:
        workers = self.config.workers
        loader = DataLoader(
            Tasks(self.maker),
            sampler=TaskSampler(self.tasks(self.place)),
            batch_size=None,
            collate_fn=as_it_is,
            num_workers=workers,
            prefetch_factor=self.config.prefetch if workers else None,
            worker_init_fn=start_worker,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # or it would draw from the one that a checkpoint restores
        )
        with child_handler_kept():
            batches = iter(loader)
        while True:
            fields, report = self.next_of(batches)
            if report.error:
                raise UserError(f"{KEY}: {report.error}")
            self.place += self.batch * self.world_size
            self.count(report)
            yield Batch(**fields)

    def next_of(self, batches: Iterator[tuple[dict[str, Any], Report]]) -> tuple[dict[str, Any], Report]:
        try:
            return next(batches)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise UserError(
                f"a process that makes batches was killed ({error}), perhaps for want of memory or of /dev/shm: lower "
                f"data.workers or data.prefetch, and start again: the run goes on from its last checkpoint"
            ) from error

    def tasks(self, place: int) -> Iterator[Task]:
        """This rank's part of every batch from `place` on."""
        while True:
            own = place + self.rank * self.batch
            yield own, self.order.take(own, self.batch)
            place += self.batch * self.world_size

    def count(self, report: Report) -> None:
        n_bad = self.n_bad
        self.counts.update(report.counts)
        for number, line in enumerate(report.lines, n_bad + 1):
            if number <= LOGGED or number & (number - 1) == 0:
                logger.warning("bad sample %d, replaced: %s", number, line)

    @property
    def n_bad(self) -> int:
        return sum(n for name, n in self.counts.items() if name.startswith("bad/"))

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was handed out, the same on all ranks, and this rank's counts."""
        return {"place": self.place, "data": self.fingerprint, "counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there: nothing before it is read. Raises UserError if these are not the same data."""
        if state["data"] != self.fingerprint:
            raise UserError(
                f"{KEY}: the checkpoint's position is one in other data ({state['data']}, here "
                f"{self.fingerprint}): shards, data.seed and data.shuffle_buffer must be those it was trained with"
            )
        self.close()
        self.place = int(state["place"])
        self.counts = Counter(state["counts"])

    @property
    def fingerprint(self) -> str:
        """Of all that the order of samples depends on."""
        return f"{self.maker.index.fingerprint}-{self.config.seed}-{self.config.shuffle_buffer}"

    def close(self) -> None:
        """End the workers."""
        while self.running:
            self.running.pop().close()  # type: ignore[attr-defined]


class TaskSampler:
    """What DataLoader asks for tasks: without end."""

    def __init__(self, tasks: Iterator[Task]) -> None:
        self.iterator = tasks

    def __iter__(self) -> Iterator[Task]:
        return self.iterator


@contextmanager
def child_handler_kept() -> Iterator[None]:
    """Without DataLoader's handler of SIGCHLD, which raises wherever the training happens to be when a worker dies.

    The dead worker is found when the next batch is asked for.
    """
    before = signal.getsignal(signal.SIGCHLD)
    yield
    if threading.current_thread() is threading.main_thread() and before is not None:
        signal.signal(signal.SIGCHLD, before)


def as_it_is(made: Any) -> Any:
    return made


def start_worker(_: int) -> None:
    """One thread each, and Ctrl-C is for the process that trains."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cv2.setNumThreads(0)
