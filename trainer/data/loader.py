"""An endless, deterministic, resumable stream of batches, independent of the number of loader processes."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from hypergrit_common.errors import UserError, prefixed
from hypergrit_common.locations import Locations
from hypergrit_common.processes import machine
from hypergrit_common.samples import is_logged, too_many_bad
from hypergrit_common.shards import list_shards
from hypergrit_common.text import counted
from trainer.batch import Batch
from trainer.data.batch_builder import BatchBuilder, BatchReport
from trainer.data.config import DataConfig
from trainer.data.features import FeatureBuilder, FeatureStore
from trainer.data.index import IndexFacts, Places, SampleIndex
from trainer.data.indexing import default_folder, index_with_versions
from trainer.data.listing import ShardVersion
from trainer.data.order import BlockOrder, Draw, MixtureOrder, Order, block_width, list_sets
from trainer.data.probe import FIXES, probe
from trainer.data.workers import next_result, read_ahead
from trainer.distributed.gather import all_ranks, on_rank_0, rank, world_size
from trainer.text.base import TextTokenizer

logger = logging.getLogger(__name__)

KEY: Final = "data.shards"
FEATURES_KEY: Final = "data.features"
MAX_DAMAGED: Final = 100  # samples of this process with damaged headers, which indexing has found correct
DRAWN: Final = 4096  # positions that are drawn at once: 256 of them take a third of the time of all


class BatchRequest(NamedTuple):
    """The samples of one rank's part of a batch; the first of them is at `position`."""

    position: int
    draw: Draw


class BatchDataset(Dataset[tuple[Batch, BatchReport]]):
    """Maps a request to its batch and a report. Runs in the loader processes.

    The message of a UserError is returned in the report, because DataLoader adds a traceback to errors that are raised.
    """

    def __init__(self, builder: BatchBuilder | FeatureBuilder) -> None:
        self.builder = builder

    def __getitem__(self, request: BatchRequest) -> tuple[Batch, BatchReport]:
        try:
            return self.builder.build(*request)
        except UserError as error:
            return Batch(streams={}), BatchReport(error=str(error))


class Loader:
    """Iterates over this rank's part of each global batch: `batch` pairs out of `batch * world_size`.

    A global batch contains a sample at most once, unless it replaces a bad sample or the batch spans two epochs.
    `counts` holds the number of "samples" of this rank, of bad samples by reason ("bad/REASON"), and of
    "damaged_shards". `versions` holds those of the shards, on rank 0 only.
    """

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
        """Index the shards. Raises UserError if they have no samples, or no sample with all fields in `needs`."""
        self.config, self.batch, self.rank, self.world_size = config, batch, rank, world_size
        if config.captions == "random" and "boxes" not in needs:  # boxes belong to the first caption
            needs |= {"captions"}
        self.key = FEATURES_KEY if config.features else KEY
        self.position = 0  # samples returned so far, over all ranks
        self.counts: Counter[str] = Counter(samples=0, damaged_shards=0)
        self.iterators: list[Iterator[Batch]] = []
        with prefixed(f"{self.key}: "):
            self._open(tokenizer, size_px, needs)

    def _open(self, tokenizer: TextTokenizer, size_px: int, needs: frozenset[str]) -> None:
        """Open the data. Raises UserError."""
        config, batch, world_size = self.config, self.batch, self.world_size
        width = block_width(batch * world_size)
        self.builder: BatchBuilder | FeatureBuilder
        if config.features:
            store = FeatureStore(config.features, needs)
            self.versions: Sequence[ShardVersion] = store.versions
            order = order_of(store, store.sets, config, width)
            self.builder = FeatureBuilder(config=config, index=store, order=order, tokenizer=tokenizer, needs=needs)
        else:
            index, n_shards = self._index_shards(needs)
            probe(index, config.layout, needs)
            self.builder = BatchBuilder(
                config=config,
                index=index,
                order=order_of(index, n_shards, config, width),
                tokenizer=tokenizer,
                size_px=size_px,
                needs=needs,
            )
        self.counts["damaged_shards"] = len(self.builder.index.damaged)
        if self.n_samples < batch * world_size:
            logger.warning(
                "%s: %s, fewer than a batch of %d, so each batch repeats some",
                self.key,
                counted(self.n_samples, "sample"),
                batch * world_size,
            )

    def _index_shards(self, needs: frozenset[str]) -> tuple[SampleIndex, list[int]]:
        """The index of the shards, and the number of shards of each set, if they have weights. Collective."""
        config, n_shards = self.config, list[int]()

        def list_urls(shards: Locations) -> list[str]:
            if not config.weights:
                return list_shards(shards)
            sets = list_sets(shards)
            n_shards.extend(map(len, sets))
            return [url for part in sets for url in part]

        folder = config.index_folder or default_folder()
        index, self.versions = build_shared_index(config.shards, folder, needs, list_urls)
        check_damaged_shards(index, config.max_bad_share, "data.max_bad_share")
        return index, all_ranks(n_shards)[0]

    @property
    def order(self) -> Order:
        """The order of the samples."""
        return self.builder.order

    @property
    def urls(self) -> Sequence[str]:
        """The paths or URLs of the shards."""
        return self.builder.index.urls

    @property
    def n_samples(self) -> int:
        return self.order.n_samples

    @property
    def size(self) -> str:
        """The size of the data, for the log."""
        return f"{self.n_samples} training samples"

    @property
    def epoch(self) -> float:
        """The number of passes over the data so far."""
        return self.position / self.n_samples

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the batches, starting at the current position. Earlier iterators are closed."""
        self.close()
        batches = self._batches()
        self.iterators.append(batches)
        return batches

    def _batches(self) -> Iterator[Batch]:
        workers = self.config.n_workers
        self.builder.plan_reads(self.batch, self.world_size, workers)
        sampler = IteratorSampler(self.requests(self.position))
        yield from self._read(BatchDataset(self.builder), workers, sampler=sampler)

    def _read(self, dataset: Dataset[tuple[Batch, BatchReport]], workers: int, **options: Any) -> Iterator[Batch]:
        """Yield the batches, and count what their reports tell; `options` as in `read_ahead`. Raises UserError."""
        prefetch, is_pinned = self.config.prefetch if workers else None, torch.cuda.is_available()
        results = read_ahead(dataset, workers, prefetch_factor=prefetch, pin_memory=is_pinned, **options)
        while True:
            batch, report = next_result(results)
            if report.error:
                raise UserError(f"{self.key}: {report.error}")
            self.position += self.batch * self.world_size
            self._add_report(report)
            yield batch

    def requests(self, position: int) -> Iterator[BatchRequest]:
        """Yield this rank's part of every batch, starting at `position`; of small batches, several are drawn at once."""
        start, stride = position + self.rank * self.batch, self.batch * self.world_size
        n = (max(DRAWN, stride) // stride - 1) * stride + self.batch
        while True:
            draw = self.order.take(start, n)
            for first in range(0, n, stride):
                yield BatchRequest(start + first, Draw(*(column[first : first + self.batch] for column in draw)))
            start += n - self.batch + stride

    def _add_report(self, report: BatchReport) -> None:
        n_bad = self.n_bad
        self.counts.update(report.counts)
        if report.counts["bad/damaged"] and self.counts["bad/damaged"] > MAX_DAMAGED:
            raise UserError(
                f"{self.key}: more than {MAX_DAMAGED} samples are damaged that were whole when the run began, among them "
                f"{report.bad_samples[-1]}; the shards were changed during the run: restore them, then repeat the "
                "command to resume"
            )
        self._check_bad_share()
        for number, line in enumerate(report.bad_samples, n_bad + 1):
            if is_logged(number):
                logger.warning("bad sample %d, replaced: %s", number, line)

    def _check_bad_share(self) -> None:
        limit = f"data.max_bad_share={self.config.max_bad_share}"
        problem, reason = too_many_bad(self.counts, self.counts["samples"] + self.n_bad, limit)
        if problem:
            fix = FIXES.get(reason, "fix or remove the shards that the log names, or raise data.max_bad_share")
            raise UserError(f"{self.key}: {problem}; {fix}")

    @property
    def n_bad(self) -> int:
        """The number of bad samples so far."""
        return sum(n for name, n in self.counts.items() if name.startswith("bad/"))

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last returned batch, equal on all ranks, and the counts of this rank."""
        # The keys are part of the checkpoint format.
        facts = {"samples": self.n_samples, "shards": len(self.urls)}
        return {"place": self.position, "data": self.fingerprint, "counts": dict(self.counts), **facts}

    @property
    def data_facts(self) -> dict[str, Any]:
        """The facts about the data that the record of a model has."""
        return {"index_hash": self.builder.index.fingerprint, "samples": self.n_samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the position in `state` without reading earlier samples, in the order in which the run began.

        Raises UserError if the data differ.
        """
        name = state["data"].removeprefix(self.fingerprint.removesuffix(self.order.name))
        order = self.order.named(name)
        if order is None:
            raise UserError(
                f"{self.key}: the checkpoint belongs to different data ({state.get('samples', '?')} samples in "
                f"{state.get('shards', '?')} shards, now {self.n_samples} in {len(self.urls)}; {state['data']}, not "
                f"{self.fingerprint}); use the same shards, data.weights and data.seed as the checkpoint"
            )
        if order.name != self.order.name:
            logger.warning("the run began with the order %s, and keeps it", order.name)
            self.builder.order = order
        self.close()
        self.position = int(state["place"])
        self.counts = Counter(state["counts"])

    @property
    def fingerprint(self) -> str:
        """Identifier of the sample order: hash of the index, seed, and name of the order."""
        return f"{self.builder.index.fingerprint}-{self.config.seed}-{self.order.name}"

    def close(self) -> None:
        """Stop the loader processes."""
        while self.iterators:
            self.iterators.pop().close()  # type: ignore[attr-defined]


def order_of(index: SampleIndex | FeatureStore, n_shards: Sequence[int], config: DataConfig, width: int) -> Order:
    """The order of all samples, or of sets of shards with weights. Raises UserError for a set without samples."""
    if not config.weights:
        return BlockOrder(index.n_samples, config.seed, width)
    ends = np.cumsum(n_shards).tolist()
    counts = [index.counts[end - n : end] for end, n in zip(ends, n_shards, strict=True)]
    if empty := next((end for end, part in zip(ends, counts, strict=True) if not sum(part)), 0):
        raise UserError(f"the set of {index.urls[empty - 1]} has no samples; leave it and its weight out")
    return MixtureOrder(counts, config.weights, config.seed, width)


def check_damaged_shards(index: SampleIndex, limit: float, key: str = "") -> None:
    """Raise UserError if a larger share than `limit`, the value of the setting `key` if it has one, of the shards is damaged."""
    damaged = index.damaged
    if len(damaged) > limit * len(index.urls):
        raise UserError(
            f"{len(damaged)} of the {len(index.urls)} shards are damaged, more than {f'{key}=' if key else 'a share of '}{limit}, "
            f"among them {damaged[0].url}: {damaged[0].problem}; create or download them again{f', or raise {key}' if key else ''}"
        )


class IteratorSampler:
    """A sampler for DataLoader that returns the items of an iterator."""

    def __init__(self, iterator: Iterator[BatchRequest]) -> None:
        self.iterator = iterator

    def __iter__(self) -> Iterator[BatchRequest]:
        return self.iterator


# Build the index of the shards on one rank, and share it with the others: the ranks of a machine read one file.

CHUNK: Final = 1 << 23  # samples that are sent at once


def build_shared_index(
    shards: Locations,
    folder: str,
    needs: frozenset[str] | None,
    list_urls: Callable[[Locations], list[str]] = list_shards,
) -> tuple[SampleIndex, list[ShardVersion]]:
    """List and index `shards` on rank 0 alone, as `list_urls` and `build_index` do, and share the index.

    The versions of the shards stay on rank 0: the list is empty on the others. Raises UserError on all ranks if rank 0
    fails. Collective.
    """
    built = on_rank_0(lambda: index_with_versions(list_urls(shards), folder, True, needs))
    index, versions = built or (None, [])
    return share(index), versions


def share(index: SampleIndex | None) -> SampleIndex:
    """Return the index of rank 0; the others pass None. Collective, on the host.

    The places of the samples are sent to one rank of each other machine. Raises UserError on all ranks if one of them
    cannot store them.
    """
    if index is not None and world_size() == 1:
        return index
    sent: list[IndexFacts | None] = [index.facts if index else None]
    dist.broadcast_object_list(sent, src=0, device=torch.device("cpu"))
    facts = sent[0]
    assert facts is not None
    machines = all_ranks(machine() if Path("/proc/self/fd").is_dir() else str(rank()))
    if machines[rank()] != machines[0]:
        facts = facts.on_another_machine()
    leaders = [machines.index(name) for name in dict.fromkeys(machines)]  # the first rank of each machine
    leader = machines.index(machines[rank()])
    places = index.places if index else None
    if len(leaders) > 1:
        group = dist.new_group(leaders, backend="gloo")
        problem = ""
        if isinstance(group, dist.ProcessGroup):  # another value for ranks outside the group
            places, problem = send_places(places, sum(facts.counts), group)
        if message := next((text for text in all_ranks(problem) if text), ""):
            raise UserError(message)
    paths = all_ranks(places.path if places else "")
    if places is None:
        places = Places.of_process(paths[leader])
    all_ranks(rank())  # a file stays open until all have opened it
    return index or SampleIndex.from_parts(facts, places)


def send_places(places: Places | None, n: int, group: dist.ProcessGroup) -> tuple[Places | None, str]:
    """Send the places of n samples from rank 0 to the others of the group, which pass None and receive them.

    Returns them, and the message of a rank that cannot store them. Collective in the group.
    """
    received, problem = places, ""
    for first in range(0, n, CHUNK):
        rows = places.read(first, min(CHUNK, n - first)).copy() if places else None
        values = np.empty((min(CHUNK, n - first), 2), np.uint32) if rows is None else rows
        dist.broadcast(torch.from_numpy(values.view(np.int32)), src=0, group=group)
        if places or problem:
            continue
        try:
            received = received or Places()
            received.append(values)
        except UserError as error:
            problem = str(error)
    return received, problem
