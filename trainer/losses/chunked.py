"""Contrastive loss without the full logit matrix, computed a few rows at a time.

The result is that of `functional.contrastive` on the full matrix, up to rounding. If all points of a batch are in a
cluster smaller than a tenth of its distance from the origin, as after a collapse, the gradient of the curvature is a
small difference of large sums, and has few or no correct digits. Memory grows with the chunk instead of with the
square of the batch. The gradient of a row depends only on that row and on sums that the forward pass has computed, so
the forward pass computes the gradients too and the backward pass only scales them.

Shapes: b queries, r of them in a chunk, n candidates, k factors.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer.losses.similarity import LazySimilarity, RowBlocks

MIN_CHUNK_ROWS = 16
"""Minimum rows of a chunk; with fewer, a matrix product spends most of its time reading the candidates."""
MAX_COMPILED = 4
"""Maximum number of chunks that torch.compile sees, which would write out the operations of each."""


class LogSumExp(NamedTuple):
    """log(sum(exp(logits))) of rows or columns as two numbers: max + log(sum_exp).

    Logits reach thousands, so one number would lose the digits of the smaller terms to rounding.
    """

    max: Tensor  # largest logit
    sum_exp: Tensor  # sum of exp(logit - max)


def contrastive(
    similarity: LazySimilarity,
    scale: Tensor,
    targets: Tensor | None,
    chunk: int,
    dtype: torch.dtype = torch.float32,
    bias: Tensor | None = None,
) -> Tensor:
    """Loss of queries against candidates: `functional.contrastive(scale * similarity + bias, targets=targets)`.

    Without `targets`: the mean of the losses of queries against candidates and vice versa, where query i matches
    candidate i. The sums over columns are complete only after the last chunk, so each chunk is computed twice. This
    costs less than computing the two directions one after the other.

    Args:
        similarity: queries, at least one, and candidates with their formula.
        scale: factor of the similarities [], or with `targets` also [b], one per query.
        targets: index of each query's candidate [b], or None for both directions, with as many queries as candidates.
        chunk: approximate number of similarities (r n k) of a chunk, which has at least `MIN_CHUNK_ROWS` rows.
        dtype: that of all operations after the inner products.
        bias: added to the logits of each query [n], without gradient; has no effect without `targets`.

    Returns:
        A scalar, which can be differentiated once.
    """
    inputs = (similarity.queries, similarity.candidates, similarity.curvature, scale)
    b, n = similarity.queries.shape[-2], similarity.candidates.shape[-2]
    n_factors = 1 if similarity.curvature is None else len(similarity.curvature)
    n_chunks = 1 if (most := max(MIN_CHUNK_ROWS, chunk // (n * n_factors))) >= b else math.ceil(b / most)
    compute = ChunkedContrastive.apply if n_chunks <= MAX_COMPILED else uncompiled
    loss: Tensor = compute(*inputs, targets, bias, similarity, n_chunks, dtype)
    return loss


class ChunkedContrastive(torch.autograd.Function):
    """The loss of `contrastive`.

    The tensors of `similarity` are also passed one by one, because autograd tracks only tensors that are arguments.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        candidates: Tensor,
        curvature: Tensor | None,
        scale: Tensor,
        targets: Tensor | None,
        bias: Tensor | None,
        similarity: LazySimilarity,
        n_chunks: int,
        dtype: torch.dtype,
    ) -> Tensor:
        b = queries.shape[-2]
        max_rows = math.ceil(b / n_chunks) if n_chunks > 1 else b
        blocks = similarity.row_blocks(max_rows, dtype)
        starts = range(0, b, max_rows) if n_chunks > 1 else (0,)  # compiled code holds the numbers of a range
        chunks = [slice(start, min(start + max_rows, b)) for start in starts]
        ctx.set_materialize_grads(False)
        needs_grad = any(ctx.needs_input_grad)
        if targets is None:
            loss, grad_scale = symmetric_loss(blocks, scale, chunks, needs_grad)
        else:
            loss, grad_scale = one_way_loss(blocks, scale, targets, bias, chunks, needs_grad)
        if needs_grad:
            ctx.save_for_backward(*blocks.gradients(), grad_scale)
            ctx.dtypes = [None if t is None else t.dtype for t in (queries, candidates, curvature, scale)]
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_loss is None:
            return (None,) * 9
        grads = [
            None if saved is None else (grad_loss * saved).to(dtype)
            for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return (*grads, None, None, None, None, None)


uncompiled = torch.compiler.disable(ChunkedContrastive.apply)


def one_way_loss(
    blocks: RowBlocks, scale: Tensor, targets: Tensor, bias: Tensor | None, chunks: list[slice], needs_grad: bool
) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient with respect to the scale. The other gradients accumulate in `blocks`."""
    loss, grad_scale = scale.new_zeros(()), torch.zeros_like(scale)
    for rows in chunks:
        similarities = blocks.forward(rows)
        target_entries = (torch.arange(len(similarities), device=targets.device), targets[rows])
        row_scale = scale if scale.ndim == 0 else scale[rows, None]
        logits = row_scale * similarities
        if bias is not None:
            logits += bias
        # Subtract the maxima: the terms of the loss become far smaller than the logits, which reduces rounding errors.
        logits -= logits.amax(1, keepdim=True)
        target_logits = logits[target_entries]
        sums = logits.exp_().sum(1)
        loss += (sums.log() - target_logits).sum() / len(targets)
        if needs_grad:
            grad_logits = logits.div_(sums[:, None])  # softmax of the row
            grad_logits[target_entries] -= 1
            grad_logits /= len(targets)
            if scale.ndim == 0:
                grad_scale += torch.dot(grad_logits.view(-1), similarities.view(-1))
            else:
                grad_scale[rows] = torch.linalg.vecdot(grad_logits, similarities)
            blocks.backward(rows, grad_logits.mul_(row_scale))
    return loss, grad_scale


def symmetric_loss(blocks: RowBlocks, scale: Tensor, chunks: list[slice], needs_grad: bool) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient with respect to the scale. The other gradients accumulate in `blocks`."""
    by_chunk: list[LogSumExp] = []
    by_column: LogSumExp | None = None
    target_logits = []
    for rows in chunks:
        similarities = blocks.forward(rows)
        logits = scale * similarities
        # A copy, because a view would keep the logits of all chunks in memory.
        target_logits.append(logits.diagonal(rows.start).clone())
        by_chunk.append(log_sum_exp(logits, 1))
        by_column = log_sum_exp(logits, 0) if by_column is None else merge(by_column, log_sum_exp(logits, 0))
    assert by_column is not None
    b, targets = len(by_column.max), torch.cat(target_logits)
    by_row = LogSumExp(*(torch.cat(column) for column in zip(*by_chunk, strict=True)))
    loss = torch.stack([(sums.log() + (maxima - targets)).mean() for maxima, sums in (by_row, by_column)]).mean()
    grad_scale = torch.zeros_like(scale)
    for rows, row in zip(chunks if needs_grad else [], by_chunk, strict=needs_grad):
        if len(chunks) > 1:  # a single chunk still holds its similarities and logits
            similarities = blocks.forward(rows)
            logits = scale * similarities
        grad_logits = (logits - row.max[:, None]).exp_().div_(row.sum_exp[:, None])
        grad_logits += logits.sub_(by_column.max).exp_().div_(by_column.sum_exp)
        grad_logits.diagonal(rows.start).sub_(2)
        grad_logits /= 2 * b
        grad_scale += torch.dot(grad_logits.view(-1), similarities.view(-1))
        blocks.backward(rows, grad_logits.mul_(scale))
    return loss, grad_scale


def log_sum_exp(logits: Tensor, dim: int) -> LogSumExp:
    """log(sum(exp(logits))) along `dim`."""
    maxima = logits.amax(dim, keepdim=True)
    return LogSumExp(maxima.squeeze(dim), (logits - maxima).exp_().sum(dim))


def merge(a: LogSumExp, b: LogSumExp) -> LogSumExp:
    """Combine the `LogSumExp` of two chunks."""
    maxima = torch.maximum(a.max, b.max)
    return LogSumExp(maxima, a.sum_exp * (a.max - maxima).exp() + b.sum_exp * (b.max - maxima).exp())
