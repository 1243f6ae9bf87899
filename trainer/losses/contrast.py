"""The contrastive loss of a model, and the choice between its two implementations.

- plain (`functional`): the full similarity matrix and autograd. Used for models without a `LazySimilarity`, for batches
  without queries, and for loss_chunk=null.
- chunked (`chunked`): PyTorch operations on a few rows of the matrix at a time. The default.

Both compute the same loss. Shapes: b queries of this rank, n candidates of all ranks, d embedding width. Lifted
points are [b d], or [k b d/k] in a product of k factors; [*k b d] stands for both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from trainer.distributed.gather import rank, world_size
from trainer.losses import chunked
from trainer.losses.functional import contrastive
from trainer.losses.sigmoid import sigmoid_contrastive
from trainer.losses.similarity import LazySimilarity

CPU_CHUNK: Final = 2**21
"""Similarities at once on a CPU, whose caches are small."""
BYTES_PER_SIMILARITY: Final = 32
"""Memory of a similarity and of what its gradient needs, most of it in float64."""
MEMORY_SHARE: Final = 8
"""Part of a GPU's memory that the similarities may take: one of so many."""


def chunk_size(chunk: int | Literal["auto"] | None, device: torch.device) -> int | None:
    """Resolve the setting loss_chunk. A GPU takes as many similarities as fit: each chunk costs hundreds of launches.

    Args:
        chunk: value of the setting.
        device: where the similarities are computed.

    Returns:
        Number of similarities to hold at once; None: the full matrix.
    """
    if chunk != "auto":
        return chunk
    return cuda_chunk(device) if device.type == "cuda" else CPU_CHUNK


@cache
def cuda_chunk(device: torch.device) -> int:
    """Number of similarities that fit the share of the GPU's memory."""
    return int(torch.cuda.get_device_properties(device).total_memory // (MEMORY_SHARE * BYTES_PER_SIMILARITY))


class HasSimilarity(Protocol):
    """A model with a similarity; `trainer.models.dual_encoder.DualEncoder` documents the methods."""

    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor: ...

    def lazy_similarity(self, queries: Tensor, candidates: Tensor) -> LazySimilarity | None: ...


class Implementation(NamedTuple):
    """Losses of fixed queries and candidates, as functions of the scale."""

    one_way: Callable[[Tensor, Tensor], Tensor]
    """Loss of queries against candidates, from the scale [], or [b] for one per query, and the targets [b]."""
    symmetric: Callable[[Tensor], Tensor] | None
    """Mean of the losses in both directions, where query i matches candidate i. None: compute each with `one_way`."""


@dataclass(frozen=True, kw_only=True)
class ContrastiveLoss:
    """Contrastive loss with the similarity of `model`. The logits are similarities of lifted points times a scale.

    Attributes:
        model: has `similarity` and `lazy_similarity`.
        chunk: the resolved setting loss_chunk of `ModelConfig`: similarities held at once; None: the full matrix.
        bias: that of the logits of the sigmoid loss [], which it selects; None: softmax.
    """

    model: HasSimilarity
    chunk: int | None
    bias: Tensor | None = None

    def one_way(
        self,
        queries: Tensor,
        candidates: Tensor,
        scale: Tensor,
        targets: Tensor | None = None,
        copies: Tensor | None = None,
    ) -> Tensor:
        """Mean loss of queries of this rank against candidates of all ranks: the cross entropy, or the sigmoid loss.

        Args:
            queries: lifted points [*k b d].
            candidates: lifted points [*k n d].
            scale: factor of the similarities [], or [b] for one per query.
            targets: index of each query's candidate [b]. By default each rank has b candidates, and query i of this
                rank matches candidate i of this rank.
            copies: number [n] of times that each candidate is repeated, 0 or more; None: one each. All copies but one
                of a query's candidate are negatives.

        Returns:
            A scalar; 0 without queries.
        """
        if targets is None:
            targets = torch.arange(queries.shape[-2], device=queries.device) + rank() * queries.shape[-2]
        if self.bias is not None:
            inputs = (queries, candidates, scale, self.bias, targets, copies, self.chunk)
            return sigmoid_contrastive(self.model.similarity, *inputs)
        if copies is None:
            return self.implementation(queries, candidates).one_way(scale, targets)
        log_copies = copies.log()
        loss = self.implementation(queries, candidates, log_copies).one_way(scale, targets)
        return loss + log_copies[targets].mean() if len(targets) else loss

    def symmetric(
        self,
        image: Tensor,
        text: Tensor,
        all_images: Tensor,
        all_texts: Tensor,
        scale: Tensor,
        weights: tuple[float, float] = (1.0, 1.0),
        targets: Tensor | None = None,
    ) -> Tensor:
        """Mean of the losses of images against texts and of texts against images, each times its weight.

        Args:
            image: lifted points of this rank [*k b d].
            text: lifted points of this rank [*k b d].
            all_images: lifted points of all ranks [*k n d].
            all_texts: lifted points of all ranks [*k n d].
            scale: factor of the similarities [].
            weights: those of the two directions. A direction of weight 0 is not computed.
            targets: index [b] of each row's match on the other side, in both directions; by default row i of this rank.
                On a single rank, row i must match row i.

        Returns:
            A scalar, half the weighted sum. The sigmoid loss is that of images against texts, because both directions
            sum over the same pairs.
        """
        if self.bias is not None:  # the same sum over all pairs in both directions
            return sum(weights) / len(weights) * self.one_way(image, all_texts, scale, targets)
        is_plain = weights == (1.0, 1.0) and world_size() == 1
        symmetric = self.implementation(all_images, all_texts).symmetric if is_plain else None
        if symmetric is not None:  # not by its truth, which torch.compile of torch 2.11 cannot trace
            return symmetric(scale)
        sides = ((image, all_texts), (text, all_images))
        losses = [
            weight * self.one_way(queries, candidates, scale, targets)
            for (queries, candidates), weight in zip(sides, weights, strict=True)
            if weight
        ]
        return torch.stack(losses).sum() / len(weights) if losses else 0 * scale

    def implementation(self, queries: Tensor, candidates: Tensor, log_copies: Tensor | None = None) -> Implementation:
        """Select the implementation for fixed queries and candidates.

        Args:
            queries: lifted points of this rank [*k b d].
            candidates: lifted points of all ranks [*k n d].
            log_copies: added to the logits of each query [n]; has no gradient.

        Returns:
            The chunked losses if the model has a `LazySimilarity`, there are queries and `chunk` is not None; otherwise
            the plain loss, whose `symmetric` is None.
        """
        has_queries = queries.shape[-2] > 0
        lazy = self.model.lazy_similarity(queries, candidates) if self.chunk is not None and has_queries else None
        if lazy is not None:
            options: dict[str, Any] = {"chunk": self.chunk, "dtype": queries.dtype}
            return Implementation(
                partial(chunked.contrastive, lazy, bias=log_copies, **options),
                partial(chunked.contrastive, lazy, targets=None, **options),
            )

        def plain(scale: Tensor, targets: Tensor) -> Tensor:
            logits = (scale if scale.ndim == 0 else scale[:, None]) * self.model.similarity(queries, candidates)
            return contrastive(logits if log_copies is None else logits + log_copies, targets=targets)

        return Implementation(plain, None)
