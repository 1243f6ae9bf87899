"""Lifted points of a batch, by stream.

Shapes: m rows of a stream on this rank, n rows on all ranks, d embedding width. Lifted points are [*k m d], as in
`trainer.models.dual_encoder`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from trainer.batch import Batch, Side, Stream
from trainer.distributed.gather import counts_of_ranks, gather, gather_streams, rank, world_size

T = TypeVar("T")


@dataclass(kw_only=True)
class Points:
    """Points of the streams of a batch, each lifted when it is first used.

    Methods that need other ranks are collective: all ranks have to call them in the same order.

    Attributes:
        batch: its features, before the lift.
        lifts: maps features [m d] of a modality to points [*k m d].
        per_rank: make each rank weigh the same in means over rows, however many rows it has. False: each row does.
        cache: results by key, see `once`.
    """

    batch: Batch
    lifts: Mapping[Side, Callable[[Tensor], Tensor]]
    per_rank: bool = False
    cache: dict[Any, Any] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Number of completed steps of the training; 0 in the first one, and outside a training."""
        return self.batch.step

    def stream(self, name: str) -> Stream:
        """The features of a stream.

        Args:
            name: of the stream, such as "box_text".

        Returns:
            Features [m d], and the pairs that own them.

        Raises:
            ValueError: the batch lacks the stream.
        """
        return self.batch[name]

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """Compute something once per batch, such as an energy that two terms use.

        Args:
            key: names the result; hashable.
            compute: is called for the first `key` only.

        Returns:
            What `compute` returned.
        """
        if key not in self.cache:
            self.cache[key] = compute()
        found: T = self.cache[key]
        return found

    def of(self, name: str) -> Tensor:
        """Points of this rank. They are rows of `all`, if that has been used before.

        Args:
            name: of the stream.

        Returns:
            Points [*k m d].

        Raises:
            ValueError: the batch lacks the stream.
        """
        stream = self.stream(name)

        def lift() -> Tensor:
            if ("all", name) in self.cache:
                return self.all(name).narrow(-2, sum(self.counts(name)[: rank()]), len(stream.rows))
            return self.lifts[stream.side](stream.rows)

        return self.once(("of", name), lift)

    def all(self, name: str) -> Tensor:
        """Points of all ranks, with gradients to each rank. Collective.

        Features are gathered before the lift; lifting those of the other ranks again costs little.

        Args:
            name: of the stream.

        Returns:
            Points [*k n d], in the order of the ranks.

        Raises:
            ValueError: the batch lacks the stream.
        """
        stream = self.stream(name)

        def rows() -> Tensor:
            return gather(stream.rows, self.counts(name))

        return self.once(("all", name), lambda: self.lifts[stream.side](self.once(("rows", name), rows)))

    def gather(self, names: Iterable[str], copied: Iterable[tuple[str, str]]) -> None:
        """Gather the features of streams, and `copies` of pairs of streams, in one message. Collective.

        What is missing here is gathered when it is first used, in a message of its own.

        Args:
            names: of the streams.
            copied: names of the streams of queries and of candidates.

        Raises:
            ValueError: the batch lacks one of the streams.
        """
        if world_size() == 1:
            return
        found: dict[Any, tuple[Tensor, list[int]]] = {}
        for name in dict.fromkeys(names):
            found["rows", name] = self.stream(name).rows, self.counts(name)
            if (own := self.own_labels(name)) is not None:
                found["labels", name] = own, self.counts(name)
        for queries, candidates in copied:
            if (own := self.own_copies(queries, candidates)) is not None:
                found["copies", queries, candidates] = own, self.counts(candidates)
        if found:
            rows, counts = zip(*found.values(), strict=True)
            self.cache |= dict(zip(found, gather_streams(rows, list(counts)), strict=True))

    def counts(self, name: str) -> list[int]:
        """Numbers of rows of a stream, those of `Batch.counts` if they are known. Collective for a stream with owners.

        Args:
            name: of the stream.

        Returns:
            One number per rank.
        """
        rows, _, owner = self.stream(name)[:3]
        if world_size() == 1:
            return [len(rows)]
        streams = self.batch.streams
        key = name if owner is None else next(key for key, other in streams.items() if other.owner is owner)
        if known := self.batch.counts.get(key):
            return list(known)
        if owner is None:
            return [len(rows)] * world_size()
        return self.once(("counts", key), lambda: list(counts_of_ranks([len(rows)])[0]))

    def share(self, name: str) -> float:
        """Weight of this rank's mean over the rows of a stream. Collective for a stream with owners.

        With it, gradients averaged over the ranks are those of the mean over the rows of all ranks.

        Args:
            name: of the stream.

        Returns:
            The weight: 1 if all ranks have the same number of rows, or with `per_rank`.
        """
        if self.per_rank:
            return 1.0
        counts = self.counts(name)
        return len(self.stream(name).rows) * world_size() / max(sum(counts), 1)

    def are_paired(self, first: str, second: str) -> bool:
        """Say whether the rows of two streams match one by one.

        Args:
            first: name of a stream.
            second: name of a stream.

        Returns:
            True if row i of one matches row i of the other: both have the same owners.
        """
        return self.stream(first).owner is self.stream(second).owner

    def targets(self, queries: str, candidates: str) -> Tensor:
        """Indices of the candidates of all ranks that match the queries of this rank. Collective.

        Args:
            queries: name of a stream.
            candidates: name of a stream with the same owners, or of one without owners.

        Returns:
            Indices [m] in the rows of `all(candidates)`.

        Raises:
            ValueError: the candidates have owners that are not those of the queries.
        """
        rows, _, owner = self.stream(queries)[:3]
        before = sum(self.counts(candidates)[: rank()])
        if self.are_paired(queries, candidates):
            return torch.arange(len(rows), device=rows.device) + before
        if owner is None or self.stream(candidates).owner is not None:
            raise ValueError(f"rows of {queries} have no single match among those of {candidates}; exchange the two")
        return owner + before

    def copies(self, queries: str, candidates: str) -> Tensor | None:
        """Numbers of queries of all ranks that each candidate matches. Collective.

        Args:
            queries: name of a stream.
            candidates: name of a stream with the same owners, or of one without owners.

        Returns:
            Numbers [n]; None if each candidate matches one query.
        """
        own = self.own_copies(queries, candidates)
        if own is None:
            return None
        key = ("copies", queries, candidates)
        return self.once(key, lambda: gather(own, self.counts(candidates)))[:, 0].to(self.stream(queries).rows.dtype)

    def own_copies(self, queries: str, candidates: str) -> Tensor | None:
        """The rows [b 1] of `copies` for the candidates of this rank."""
        rows, _, owner = self.stream(queries)[:3]
        if owner is None or self.are_paired(queries, candidates):
            return None
        own = torch.zeros(len(self.stream(candidates).rows), device=rows.device)
        own.index_add_(0, owner, torch.ones_like(owner, dtype=own.dtype))
        return own[:, None]

    def labels(self, name: str) -> Tensor:
        """Labels of a taxonomy, of all ranks. Collective.

        Args:
            name: of the stream of the labels.

        Returns:
            Pair, depth and number of each label [n 3], int64. Pairs are counted over all ranks.

        Raises:
            ValueError: the stream lacks owner, depth or label.
        """
        own = self.own_labels(name)
        if own is None:
            raise ValueError(
                f"the stream {name} needs owner, depth and label; build it as trainer.data.batch_builder does"
            )
        return self.once(("labels", name), lambda: gather(own, self.counts(name)))

    def own_labels(self, name: str) -> Tensor | None:
        """The rows [m 3] of `labels` of this rank; None for a stream of other rows."""
        _, _, owner, depth, label = self.stream(name)[:5]
        if owner is None or depth is None or label is None:
            return None
        return torch.stack([owner + sum(self.counts("image")[: rank()]), depth, label], 1)

    def pair(self, general: str, specific: str) -> tuple[Tensor, Tensor]:
        """Points of two streams, pair by pair: those without owners are repeated for each row that they own.

        Args:
            general: name of a stream.
            specific: name of a stream. Both have the same owners, or one of them has none.

        Returns:
            Points of both streams [*k m d], m being the number of rows of the stream with owners.

        Raises:
            ValueError: the batch lacks one of the streams.
        """
        first, second = self.of(general), self.of(specific)
        if self.are_paired(general, specific):
            return first, second
        return self.repeated(general, specific, first), self.repeated(specific, general, second)

    def owned(self, general: str, specific: str) -> str:
        """The name of the stream of `pair` whose rows are its pairs: the one with owners, if any.

        Args:
            general: name of a stream.
            specific: name of a stream.

        Returns:
            One of the names.
        """
        return specific if self.stream(general).owner is None and self.stream(specific).owner is not None else general

    def repeated(self, name: str, other: str, points: Tensor) -> Tensor:
        """The points of a stream without owners, one for each row of `other`; those of a stream with owners as they are."""
        owner = self.stream(other).owner
        return points if self.stream(name).owner is not None or owner is None else points.index_select(-2, owner)
