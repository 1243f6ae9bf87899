"""The contrastive loss without its matrix of logits: a few rows of queries at a time, gradients included.

What `losses.contrastive` says of all similarities at once, computed in memory that grows with the chunk. The forward
pass knows the gradient of a row as soon as it knows the row, so it leaves gradients behind and the backward pass only
scales them.

Shapes: b queries, r of them in a chunk, n candidates.
"""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from trainer.losses.similarity import Blocks, Comparison

ROWS = 16  # of a chunk, however many candidates: with fewer its products would do little else than read these


def contrastive(
    comparison: Comparison, scale: Tensor, targets: Tensor, chunk: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """`losses.contrastive(scale * similarity, targets)`, about `chunk` numbers (r n k) at a time, 16 rows at least."""
    return apply(comparison, scale, targets, chunk, dtype)


def symmetric_contrastive(
    comparison: Comparison, scale: Tensor, chunk: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Mean of the losses of queries against candidates and the other way round, b of each, pair by pair.

    Each chunk is computed twice, for the columns' sums are known at the end only, which is less than both directions.
    """
    return apply(comparison, scale, None, chunk, dtype)


def apply(comparison: Comparison, scale: Tensor, targets: Tensor | None, chunk: int, dtype: torch.dtype) -> Tensor:
    c = comparison
    loss: Tensor = Contrastive.apply(c.queries, c.candidates, c.curvature, scale, targets, c, chunk, dtype)
    return loss


class Contrastive(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        candidates: Tensor,
        curvature: Tensor | None,
        scale: Tensor,
        targets: Tensor | None,
        comparison: Comparison,
        chunk: int,
        dtype: torch.dtype,
    ) -> Tensor:
        comparison = dataclasses.replace(comparison, queries=queries, candidates=candidates, curvature=curvature)
        b, n = queries.shape[-2], candidates.shape[-2]
        n_factors = 1 if curvature is None else len(curvature)
        n_chunks = math.ceil(b / min(b, max(ROWS, chunk // (n * n_factors))))
        rows = math.ceil(b / n_chunks)
        blocks = comparison.blocks(rows, dtype)
        chunks = [slice(start, min(start + rows, b)) for start in range(0, b, rows)]
        ctx.set_materialize_grads(False)
        learns = any(ctx.needs_input_grad)
        if targets is None:
            loss, grad_scale = both_ways(blocks, scale, chunks, learns)
        else:
            loss, grad_scale = one_way(blocks, scale, targets, chunks, learns)
        if learns:
            ctx.save_for_backward(*blocks.gradients(), grad_scale)
            ctx.dtypes = [None if t is None else t.dtype for t in (queries, candidates, curvature, scale)]
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return (None,) * 8
        grads = [
            None if saved is None else (gradient * saved).to(dtype)
            for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return (*grads, None, None, None, None)


def one_way(blocks: Blocks, scale: Tensor, targets: Tensor, chunks: list[slice], learns: bool) -> tuple[Tensor, Tensor]:
    """Loss and the gradient of the scale; the others stay in `blocks`."""
    total, grad_scale = torch.zeros_like(scale), torch.zeros_like(scale)
    for rows in chunks:
        similarities = blocks.similarities(rows)
        own = (torch.arange(len(similarities), device=targets.device), targets[rows])
        odds = scale * similarities
        odds -= odds.amax(1, keepdim=True)  # sums of far smaller numbers than the logits lose nothing to rounding
        own_logits = odds[own]
        sums = odds.exp_().sum(1)
        total += (sums.log() - own_logits).sum() / len(targets)
        if learns:
            slopes = odds.div_(sums[:, None])
            slopes[own] -= 1
            slopes /= len(targets)
            grad_scale += torch.dot(slopes.view(-1), similarities.view(-1))
            blocks.accumulate(rows, slopes.mul_(scale))
    return total, grad_scale


def both_ways(blocks: Blocks, scale: Tensor, chunks: list[slice], learns: bool) -> tuple[Tensor, Tensor]:
    """Loss and the gradient of the scale; the others stay in `blocks`."""
    by_row: list[tuple[Tensor, Tensor]] = []
    by_column: tuple[Tensor, Tensor] | None = None
    own_logits = []
    for rows in chunks:
        similarities = blocks.similarities(rows)
        logits = scale * similarities
        own_logits.append(logits.diagonal(rows.start))
        by_row.append(peak_and_sum(logits, 1))
        by_column = peak_and_sum(logits, 0) if by_column is None else merge(by_column, peak_and_sum(logits, 0))
    assert by_column is not None
    b, own = len(by_column[0]), torch.cat(own_logits)
    ways = [tuple(torch.cat(column) for column in zip(*by_row, strict=True)), by_column]
    loss = torch.stack([(sums.log() + (peaks - own)).mean() for peaks, sums in ways]).mean()
    grad_scale = torch.zeros_like(scale)
    for rows, row in zip(chunks if learns else [], by_row, strict=learns):
        if len(chunks) > 1:
            similarities = blocks.similarities(rows)
            logits = scale * similarities
        slopes = (logits - row[0][:, None]).exp_().div_(row[1][:, None])
        slopes += logits.sub_(by_column[0]).exp_().div_(by_column[1])
        slopes.diagonal(rows.start).sub_(2)
        slopes /= 2 * b
        grad_scale += torch.dot(slopes.view(-1), similarities.view(-1))
        blocks.accumulate(rows, slopes.mul_(scale))
    return loss, grad_scale


def peak_and_sum(logits: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The largest logit along `dim`, and the sum of the exponentials over that of the largest.

    Apart from each other they keep what their logarithm's sum would round away: logits reach thousands.
    """
    peak = logits.amax(dim, keepdim=True)
    return peak.squeeze(dim), (logits - peak).exp_().sum(dim)


def merge(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """`peak_and_sum` of two chunks together."""
    peak = torch.maximum(a[0], b[0])
    return peak, a[1] * (a[0] - peak).exp() + b[1] * (b[0] - peak).exp()
