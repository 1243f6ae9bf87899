"""The sigmoid loss of all pairs (SigLIP, arXiv 2303.15343). Shapes: b queries, n candidates of all ranks, d width."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def sigmoid_contrastive(
    similarity: Callable[[Tensor, Tensor], Tensor],
    queries: Tensor,
    candidates: Tensor,
    scale: Tensor,
    bias: Tensor,
    targets: Tensor,
    copies: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Mean over queries of the sum over candidates of the loss of a pair (SigLIP, section 3.2).

        log(1 + exp(z_ij (-t sim_ij - bias))),  z_ij = 1 for the candidate of query i, -1 for all others

    Args:
        similarity: maps queries [*k r d] and candidates [*k n d] to similarities [r n].
        queries: lifted points [*k b d].
        candidates: lifted points [*k n d].
        scale: t, [] or [b].
        bias: added to the logits [].
        targets: index of each query's candidate [b].
        copies: number [n] of times that each candidate is repeated, 0 or more; None: one each. All copies but one of a
            query's candidate are negatives.
        chunk: approximate number of similarities that are held at once, and computed again in the backward pass; None:
            all.

    Returns:
        A scalar; 0 without queries.
    """
    b, n = queries.shape[-2], candidates.shape[-2]
    rows = b if chunk is None else min(max(1, chunk // max(n, 1)), b)

    def part(queries: Tensor, scale: Tensor, targets: Tensor, candidates: Tensor) -> Tensor:
        logits = scale[:, None] * similarity(queries, candidates) + bias
        negatives = F.softplus(logits) if copies is None else copies * F.softplus(logits)
        return negatives.sum() - logits.gather(1, targets[:, None]).sum()

    if rows == b:
        return part(queries, scale.expand(b), targets, candidates) / max(b, 1)
    parts = zip(queries.split(rows, -2), scale.expand(b).split(rows), targets.split(rows), strict=True)
    losses = (checkpoint(part, *values, candidates, use_reentrant=False) for values in parts)
    return sum(losses, bias.new_zeros(())) / b
