"""Contrastive loss in Triton kernels for GPUs. Similarities exist only as tiles in registers; gradients are exact.

The formulas are those of `chunked`. The forward pass accumulates the sums of the softmax tile by tile (Milakov and
Gimelshein, Online normalizer calculation for softmax, arXiv 1805.02867). The backward pass recomputes the tiles.
Memory holds the coordinates in float64 and their gradients in float32, so it grows with the number of points and not
with the number of pairs. Points of the Poincaré ball are first mapped to the Lorentz model, as in `similarity`.

Shapes: b queries, n candidates, k factors, w coordinates of a factor (`coshm1_coordinates`). In `Kernels`
and `fused_kernels`, queries or candidates are the rows: `x` [k n w] holds n rows, and `y` [k m w] m columns.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor

from benchmarks.gpu.fused_kernels import gradient_kernel, softmax_kernel
from trainer.losses.contrast import ContrastiveLoss, Implementation
from trainer.losses.similarity import LazySimilarity

ROWS, COLUMNS = 64, 64  # of a tile
MAX_DEPTH = 32  # coordinates in one step of a matrix product
WARPS, STAGES = 8, 2
# Minimum number of programs that keeps a GPU busy. If there are fewer tiles of rows than this, several programs share a
# tile of rows, and each processes some of the columns.
MIN_PROGRAMS = 256


@dataclass(frozen=True)
class Softmax:
    """Softmax statistics of n rows. The sum of exp(logits) of a row is sum_exp * exp(max).

    Logits reach thousands, so one number would lose the digits of the smaller terms to rounding.
    """

    targets: Tensor  # [n] int64, index of the row's target column
    max: Tensor  # [n] float32, largest logit
    sum_exp: Tensor  # [n] float32, sum of exp(logit - max)


@contextmanager
def in_losses() -> Iterator[None]:
    """Let the contrastive losses of models inside use the kernels, where they can: without biases and scales per row."""
    chunked = ContrastiveLoss.implementation

    def implementation(
        self: ContrastiveLoss, queries: Tensor, candidates: Tensor, log_copies: Tensor | None = None
    ) -> Implementation:
        other = chunked(self, queries, candidates, log_copies)
        lazy = self.model.lazy_similarity(queries, candidates) if queries.shape[-2] else None
        if lazy is None or log_copies is not None:
            return other

        def one_way(scale: Tensor, targets: Tensor) -> Tensor:
            return other.one_way(scale, targets) if scale.ndim else contrastive(lazy, scale, targets)

        return Implementation(one_way, partial(contrastive, lazy))

    with patch.object(ContrastiveLoss, "implementation", implementation):
        yield


def contrastive(similarity: LazySimilarity, scale: Tensor, targets: Tensor | None = None) -> Tensor:
    """The loss of `trainer.losses.chunked.contrastive`, which without `targets` is the mean of both directions."""
    queries, candidates, curvature = similarity.queries, similarity.candidates, similarity.curvature
    if curvature is None:
        x, y, weights = queries.float()[None], candidates.float()[None], None
    else:
        unit = curvature.sqrt() if similarity.metric == "l1" else curvature
        x, y = coshm1_coordinates(queries, curvature, -1), coshm1_coordinates(candidates, curvature, 1)
        weights = (1 / (len(unit) * unit)).float()
    metric = "cosine" if weights is None else similarity.metric
    inputs = (x.contiguous(), y.contiguous(), weights, scale.float())
    loss: Tensor = FusedContrastive.apply(*inputs, targets, similarity.eps, metric)
    return loss.to(scale.dtype)


def coshm1_coordinates(points: Tensor, curvature: Tensor, sign: int) -> Tensor:
    """Coordinates (sign sqrt(c) x, x_t, sign) [k b d+2] of points [k b d] in float64, computed by autograd.

    The inner product of coordinates with sign -1 and coordinates with sign 1 is coshm1.
    """
    space = curvature.double().sqrt()[:, None, None] * points.double()
    time = (1 + space.square().sum(-1, keepdim=True)).sqrt()
    return torch.cat([sign * space, time, torch.full_like(time, sign)], -1)


class FusedContrastive(torch.autograd.Function):
    """The loss of `contrastive`.

    `x` [k b w] and `y` [k n w] are coordinates whose inner product in each factor is coshm1, or the cosine.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None,
        scale: Tensor,
        targets: Tensor | None,
        eps: float,
        metric: str,
    ) -> Tensor:
        ctx.kernels = Kernels(weights, scale, eps, metric)
        ctx.is_symmetric = targets is None
        if targets is None:
            diagonal = torch.arange(x.shape[1], device=x.device)
            row_losses, by_row = ctx.kernels.softmax(x, y, diagonal)
            column_losses, by_column = ctx.kernels.softmax(y, x, diagonal)
            loss = (row_losses.mean() + column_losses.mean()) / 2
        else:
            row_losses, by_row = ctx.kernels.softmax(x, y, targets)
            loss, by_column = row_losses.mean(), by_row
        ctx.save_for_backward(x, y, by_row.targets, by_row.max, by_row.sum_exp, by_column.max, by_column.sum_exp)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        x, y, targets, *saved = ctx.saved_tensors
        by_row = Softmax(targets, *saved[:2])
        by_column = Softmax(targets, *saved[2:]) if ctx.is_symmetric else None
        sum_x, sum_weights, sum_scale = ctx.kernels.gradients(x, y, by_row, by_column, with_scalars=True)
        sum_y, _, _ = ctx.kernels.gradients(y, x, by_column, by_row, with_scalars=False)
        grad_row = grad_loss / (len(targets) * (2 if ctx.is_symmetric else 1))  # the kernels sum over rows
        grad_x, grad_y = (grad_row * total for total in (sum_x, sum_y))
        grad_weights, grad_scale = (
            None if total is None else (grad_row * total).float() for total in (sum_weights, sum_scale)
        )
        return grad_x.to(x.dtype), grad_y.to(x.dtype), grad_weights, grad_scale, None, None, None


@dataclass(frozen=True)
class Kernels:
    """The Triton kernels and their arguments other than coordinates."""

    weights: Tensor | None  # [k]; None: cosine
    scale: Tensor  # []
    eps: float  # minimum of coshm1
    metric: str  # cosine, l1 or l2

    def softmax(self, x: Tensor, y: Tensor, targets: Tensor) -> tuple[Tensor, Softmax]:
        """Losses [n] of the rows `x` against the columns `y`, and the statistics of their softmax."""
        n_splits, tiles_per_split = split_columns(x.shape[1], y.shape[1])
        maxima, sums, target_logits = (x.new_empty(n_splits, x.shape[1], dtype=torch.float32) for _ in range(3))
        with torch.cuda.device_of(x):
            softmax_kernel[grid(x, n_splits)](
                x, y, self.weights, self.scale, targets, maxima, sums, target_logits,
                *self.sizes(x, y), tiles_per_split, **self.constants(x)
            )  # fmt: skip
        row_max = maxima.amax(0)
        sum_exp = (sums * (maxima - row_max).exp()).sum(0)
        return sum_exp.log() + (row_max - target_logits.sum(0)), Softmax(targets, row_max, sum_exp)

    def gradients(
        self, x: Tensor, y: Tensor, by_row: Softmax | None, by_column: Softmax | None, with_scalars: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradients of the sum of the losses with respect to `x` [k n w] in float32, the weights [k] and the scale [].

        The last two are None without `with_scalars`; the weights' gradient is also None for the cosine. The losses are
        those of the rows, if `by_row` is given, plus those of the columns, if `by_column` is given.
        """
        n_splits, tiles_per_split = split_columns(x.shape[1], y.shape[1])
        n_programs = grid(x, n_splits)[0] * n_splits
        grad_x = x.new_zeros(n_splits, *x.shape, dtype=torch.float32)
        has_weights = with_scalars and self.weights is not None
        grad_weights = x.new_zeros(n_programs, len(x), dtype=torch.float32) if has_weights else None
        grad_scale = x.new_empty(n_programs, dtype=torch.float32) if with_scalars else None
        rows, columns = (
            (None, None, None) if softmax is None else (softmax.targets, softmax.max, softmax.sum_exp)
            for softmax in (by_row, by_column)
        )
        with torch.cuda.device_of(x):
            gradient_kernel[grid(x, n_splits)](
                x, y, self.weights, self.scale, *rows, *columns, grad_x, grad_weights, grad_scale,
                *self.sizes(x, y), tiles_per_split, **self.constants(x), SINGLE_FACTOR=len(x) == 1
            )  # fmt: skip
        sum_weights, sum_scale = (
            None if parts is None else parts.double().sum(0) for parts in (grad_weights, grad_scale)
        )
        return grad_x.sum(0), sum_weights, sum_scale

    def sizes(self, x: Tensor, y: Tensor) -> tuple[int, int, int, int, float]:
        return x.shape[1], y.shape[1], x.shape[2], x.shape[0], self.eps

    def constants(self, x: Tensor) -> dict[str, Any]:
        depth = min(MAX_DEPTH, max(8, triton.next_power_of_2(x.shape[2])))  # tensor cores need at least 8
        return {
            "METRIC": self.metric, "ROWS": ROWS, "COLUMNS": COLUMNS, "DEPTH": depth,
            "num_warps": WARPS, "num_stages": STAGES,
        }  # fmt: skip


def split_columns(n_rows: int, n_columns: int) -> tuple[int, int]:
    """Number of splits of the columns, and tiles per split.

    Both depend on the sizes only, not on the GPU, so that every GPU adds numbers in the same order.
    """
    n_tiles = triton.cdiv(n_columns, COLUMNS)
    tiles_per_split = triton.cdiv(n_tiles, min(n_tiles, triton.cdiv(MIN_PROGRAMS, triton.cdiv(n_rows, ROWS))))
    return triton.cdiv(n_tiles, tiles_per_split), tiles_per_split


def grid(x: Tensor, n_splits: int) -> tuple[int, int]:
    """Launch grid: number of tiles of rows, number of splits of the columns."""
    return triton.cdiv(x.shape[1], ROWS), n_splits
