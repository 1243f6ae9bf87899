"""Batches of shards that are read as streams (`data.reader=webdataset`), such as the output of commands."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import IterableDataset, get_worker_info

from hypergrit_common.errors import UserError
from hypergrit_common.text import counted
from trainer.batch import Batch
from trainer.data.batch_builder import BatchReport, Candidate, RowBuilder
from trainer.data.listing import ShardVersion
from trainer.data.loader import KEY, Loader
from trainer.text.base import TextTokenizer

if TYPE_CHECKING:  # webdataset, which other runs do not need
    from hypergrit_common.sample_stream import SampleStream

logger = logging.getLogger(__name__)

BUFFER: Final = 2048
"""Samples that a loader process shuffles, encoded."""


class StreamDataset(IterableDataset[tuple[Batch, BatchReport]]):
    """The batches of a loader process, from its part of a stream, without end."""

    def __init__(self, stream: "SampleStream", builder: RowBuilder, batch: int, position: int) -> None:
        self.stream, self.builder, self.batch, self.position = stream.repeat(), builder, batch, position

    def __iter__(self) -> Iterator[tuple[Batch, BatchReport]]:
        info, (rank, world_size) = get_worker_info(), self.stream.ranks
        worker, n_workers = (info.id, info.num_workers) if info else (0, 1)
        candidates, n_damaged = self._candidates(), 0
        try:
            for number in count(worker, n_workers):  # the loader takes the batches of its processes in turn
                position = self.position + (number * world_size + rank) * self.batch
                batch, report = self.builder.fill(position, [candidates] * self.batch)
                report.counts["damaged_shards"] += len(self.stream.damaged) - n_damaged
                n_damaged = len(self.stream.damaged)
                yield batch, report
        except UserError as error:
            yield Batch(streams={}), BatchReport(error=str(error))

    def _candidates(self) -> Iterator[Candidate]:
        from hypergrit_common.sample_stream import shard_name

        for sample in self.stream:
            yield Candidate(shard_name(sample["__url__"]), sample["__key__"], sample)
        raise UserError("the shards of a loader process hold no sample; give others")


class StreamLoader(Loader):
    """A Loader of shards that are read as streams. The number of samples is unknown, and no position can be found again."""

    def _open(self, tokenizer: TextTokenizer, size_px: int, needs: frozenset[str]) -> None:
        """List the shards, without reading them. Raises UserError."""
        self.rows = RowBuilder(config=self.config, tokenizer=tokenizer, size_px=size_px, needs=needs)
        self._open_stream()
        self.versions = [ShardVersion(name, 0, "", "") for name in self.urls]
        logger.info("data.reader=webdataset: %s, without an index; a run that resumes begins another order", self.size)

    def _open_stream(self) -> None:
        """Open the stream of this rank, in an order that depends on the position."""
        try:
            from hypergrit_common.sample_stream import SampleStream, shard_name
        except ModuleNotFoundError as error:
            raise UserError(f"reader=webdataset needs the package {error.name}; pip install {error.name}") from error
        self.stream = SampleStream(
            self.config.shards,
            shuffle=BUFFER,
            seed=f"{self.config.seed}:{self.position}",
            max_bad_share=self.config.max_bad_share,
            ranks=(self.rank, self.world_size),
        )
        self.names = [shard_name(url) for url in self.stream.urls]

    @property
    def urls(self) -> Sequence[str]:
        return self.names

    @property
    def size(self) -> str:
        return f"{counted(len(self.names), 'shard')} as streams"

    @property
    def data_facts(self) -> dict[str, Any]:
        return {"reader": "webdataset", "shards": len(self.names)}

    @property
    def fingerprint(self) -> str:
        return f"webdataset-{self.config.seed}"

    def _batches(self) -> Iterator[Batch]:
        workers = min(self.config.n_workers, len(self.names) // self.world_size)  # each needs a shard
        yield from self._read(StreamDataset(self.stream, self.rows, self.batch, self.position), workers)

    def state_dict(self) -> dict[str, Any]:
        facts = {"shards": len(self.names)}
        return {"place": self.position, "data": self.fingerprint, "counts": dict(self.counts), **facts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue to count at the position in `state`; the samples come in a new order."""
        self.close()
        self.position, self.counts = int(state["place"]), Counter(state["counts"])
        self._open_stream()
        logger.warning(
            "%s: a stream cannot go back to the position of the checkpoint: after %s, the shards begin anew in another "
            "order, so some samples are read again, and others later",
            KEY,
            counted(self.position, "sample"),
        )
