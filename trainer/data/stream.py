"""Batches of shards that are read as streams (`data.reader=webdataset`), such as the output of commands.

webdataset gives the samples (`hypergrit_common.sample_stream`), and the batches are built from them as from indexed shards.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import IterableDataset, get_worker_info

from hypergrit_common.errors import UserError, prefixed
from hypergrit_common.layouts import find_layout
from hypergrit_common.samples import MAX_SAMPLE_BYTES, BadSample
from hypergrit_common.text import counted
from schemas.training import Layout
from trainer.batch import Batch
from trainer.data.batch_builder import BatchReport, Candidate, RowBuilder
from trainer.data.config import DataConfig
from trainer.data.listing import ShardVersion
from trainer.data.loader import KEY, Loader
from trainer.data.workers import read_ahead
from trainer.text.base import TextTokenizer

if TYPE_CHECKING:  # webdataset, which other runs do not need
    from hypergrit_common.sample_stream import SampleStream, Streamed

logger = logging.getLogger(__name__)

BUFFER: Final = 2048
"""Samples that a loader process shuffles, encoded."""


class StreamDataset(IterableDataset[tuple[dict[str, Any], BatchReport]]):
    """The batches of a loader process, from its part of a stream, without end."""

    def __init__(self, stream: "SampleStream", builder: RowBuilder, batch: int, position: int) -> None:
        self.stream, self.builder, self.batch, self.position = stream, builder, batch, position
        self.is_layout_known = builder.config.layout != "auto"

    def __iter__(self) -> Iterator[tuple[dict[str, Any], BatchReport]]:
        info, (rank, world_size) = get_worker_info(), self.stream.ranks
        worker, n_workers = (info.id, info.num_workers) if info else (0, 1)
        samples = map(self._candidate, iter(self.stream))
        n_damaged = 0
        try:
            for number in count(worker, n_workers):  # the loader takes the batches of its processes in turn
                position = self.position + (number * world_size + rank) * self.batch
                fields, report = self.builder.fill(position, [samples] * self.batch)
                report.counts["damaged_shards"] += len(self.stream.damaged) - n_damaged
                n_damaged = len(self.stream.damaged)
                yield fields, report
        except UserError as error:
            yield {}, BatchReport(error=str(error))

    def _candidate(self, sample: "Streamed") -> Candidate:
        problem = None
        if not sample.data:
            problem = BadSample("too_large", f"{sample.key} has more than {MAX_SAMPLE_BYTES} bytes")
        elif not self.is_layout_known:
            try:
                self.builder.layout, self.is_layout_known = find_layout(sample.data), True
            except BadSample as bad:
                problem = bad
        return Candidate(sample.shard, sample.key, sample.data, problem)


class StreamLoader(Loader):
    """A Loader of shards that are read as streams. The number of samples is unknown, and no position can be found again."""

    def __init__(
        self,
        config: DataConfig,
        *,
        tokenizer: TextTokenizer,
        size_px: int,
        batch: int,
        needs: frozenset[str],
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """List the shards, without reading them. Raises UserError."""
        self.config, self.batch, self.rank, self.world_size, self.key = config, batch, rank, world_size, KEY
        if config.captions == "random" and "boxes" not in needs:
            needs |= {"captions"}
        layout: Layout = "train" if config.layout == "auto" else config.layout  # until a sample tells it
        self.rows = RowBuilder(config=config, layout=layout, tokenizer=tokenizer, size_px=size_px, needs=needs)
        self.position, self.iterators = 0, []
        with prefixed(f"{KEY}: "):
            self.stream = self._open()
        self.versions = [ShardVersion(name, 0, "", "") for name in self.urls]
        self.counts: Counter[str] = Counter(samples=0, damaged_shards=0)
        logger.info(
            "data.reader=webdataset: %s are read as streams, without an index; a run that resumes begins another order",
            counted(len(self.urls), "shard"),
        )

    def _open(self) -> "SampleStream":
        """Open the stream of this rank, in an order that depends on the position."""
        try:
            from hypergrit_common.sample_stream import SampleStream
        except ModuleNotFoundError as error:
            raise UserError(
                f"data.reader=webdataset needs the package {error.name}; pip install {error.name}"
            ) from error
        return SampleStream(
            self.config.shards,
            None,
            shuffle=BUFFER,
            seed=f"{self.config.seed}:{self.position}",
            repeat=True,
            max_bad_share=self.config.max_bad_share,
            ranks=(self.rank, self.world_size),
        )

    @property
    def urls(self) -> Sequence[str]:
        return [self.stream.name(number) for number in range(len(self.stream.urls))]

    @property
    def size(self) -> str:
        return f"{counted(len(self.urls), 'shard')} as streams"

    @property
    def data_facts(self) -> dict[str, Any]:
        return {"shards_hash": self.fingerprint, "shards": len(self.urls)}

    @property
    def fingerprint(self) -> str:
        names = "\n".join(self.urls)
        return f"webdataset-{hashlib.sha256(names.encode()).hexdigest()[:16]}-{self.config.seed}"

    def _batches(self) -> Iterator[Batch]:
        workers = self.config.n_workers
        results = read_ahead(
            StreamDataset(self.stream, self.rows, self.batch, self.position),
            workers,
            prefetch_factor=self.config.prefetch if workers else None,
            pin_memory=torch.cuda.is_available(),
        )
        yield from self._checked(results)

    def state_dict(self) -> dict[str, Any]:
        return {
            "place": self.position,
            "data": self.fingerprint,
            "counts": dict(self.counts),
            "shards": len(self.urls),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue to count at the position in `state`; the samples come in a new order."""
        if state["data"] != self.fingerprint:
            logger.warning(
                "%s: the checkpoint was written with other shards or another reader; these are used from now on", KEY
            )
        self.close()
        self.position, self.counts = int(state["place"]), Counter(state["counts"])
        self.stream = self._open()
        logger.warning(
            "data.reader=webdataset cannot go back to the position of the checkpoint: after %s, the shards begin anew in another "
            "order, so some samples are read again, and others later",
            counted(self.position, "sample"),
        )
