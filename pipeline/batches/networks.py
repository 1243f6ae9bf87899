"""The networks that answer the questions of rows: the grounder, and the two towers of CLIP."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from common.images import STORED_IMAGE_LIMITS, Image, decode
from pipeline.batches.batcher import Batch
from pipeline.ground.grounder import Grounder, Span

Finished = list[tuple[Batch, list[Any]]]


class GroundItem(NamedTuple):
    """The input of the grounder for a row. The answer is a pair (Grounded, decoded image)."""

    image: bytes
    caption: str
    spans: list[Span]


class GroundNetwork:
    """A grounder. While it computes a batch, a thread prepares the next one and another collects the previous one."""

    stage = "ground"

    def __init__(self, grounder: Grounder, batch_size: int) -> None:
        self.grounder, self.batch_size = grounder, batch_size
        self._preparer, self._collector = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._prepared: deque[tuple[Batch, Future[tuple[Any, list[Image]]]]] = deque()
        self._running: deque[tuple[Batch, list[Image], Future[list[Any]]]] = deque()

    def submit(self, batch: Batch) -> Finished:
        """Prepare a batch, run the one before, and return the one before that, if its results are awaited by now."""
        self._prepared.append((batch, self._preparer.submit(self._prepare, [slot.item for slot in batch])))
        return self._advance(keep=1)

    def drain(self) -> Finished:
        """Finish all batches."""
        return self._advance(keep=0)

    def close(self) -> None:
        """End the threads."""
        for pool in (self._preparer, self._collector):
            pool.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, items: list[GroundItem]) -> tuple[Any, list[Image]]:
        images = [decode(item.image, STORED_IMAGE_LIMITS) for item in items]
        return self.grounder.prepare(images, [item.caption for item in items], [item.spans for item in items]), images

    def _advance(self, keep: int) -> Finished:
        while len(self._prepared) > keep:
            batch, prepared = self._prepared.popleft()
            inputs, images = prepared.result()
            output = self.grounder.forward(inputs)
            self._running.append((batch, images, self._collector.submit(self.grounder.collect, output)))
        finished: Finished = []
        while len(self._running) > keep:
            batch, images, results = self._running.popleft()
            finished.append((batch, list(zip(results.result(), images, strict=True))))
        return finished


class TowerNetwork:
    """A tower of a scorer: texts, of which only those of the same padded length share a batch, or images and crops."""

    stage = "score"

    def __init__(self, embed: Callable[[list[Any]], Iterable[Any]], batch_size: int) -> None:
        self.embed, self.batch_size = embed, batch_size

    def submit(self, batch: Batch) -> Finished:
        """Embed the items of a batch."""
        return [(batch, list(self.embed([slot.item for slot in batch])))]

    def drain(self) -> Finished:
        """Return nothing, since no batch runs in the background."""
        return []
