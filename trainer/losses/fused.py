"""The contrastive loss on a GPU in Triton kernels: tiles of similarities that never leave the chip, exact gradients.

What `chunked` computes, and from the same formulas. Going forward the softmax is summed up as tiles come by; going back
the tiles are computed again. Memory is that of the coordinates in float64 and of their gradients in float32, however
many pairs there are. The Poincare ball is covered by its isometry with the Lorentz model, as in `blocks`.

    Milakov, Gimelshein: Online normalizer calculation for softmax, arXiv 1805.02867

Shapes: b queries, n candidates, k factors, w coordinates of a factor (`blocks.extend`).
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from trainer.losses.fused_kernels import gradient_kernel, softmax_kernel
from trainer.losses.similarity import Comparison

ROWS, COLUMNS, DEPTH = 64, 64, 32  # of a tile; coordinates at a time, at most
WARPS, STAGES = 8, 2
PROGRAMS = (
    256  # wanted at least, to keep a GPU busy; few rows are looked at by several, each with a share of the columns
)


@dataclass(frozen=True)
class Softmax:
    """Of each row's logits: the sum of exponentials is sums * exp(peaks). Apart they keep what one number would lose."""

    targets: Tensor  # [n] int64
    peaks: Tensor  # [n] float32
    sums: Tensor  # [n] float32


def contrastive(comparison: Comparison, scale: Tensor, targets: Tensor) -> Tensor:
    """`losses.contrastive(scale * similarity, targets)`."""
    return apply(comparison, scale, targets)


def symmetric_contrastive(comparison: Comparison, scale: Tensor) -> Tensor:
    """Mean of the losses of queries against candidates and the other way round, b of each, pair by pair."""
    return apply(comparison, scale, None)


def apply(comparison: Comparison, scale: Tensor, targets: Tensor | None) -> Tensor:
    c = comparison
    if c.curvature is None:
        x, y, weights = c.queries.float()[None], c.candidates.float()[None], None
    else:
        unit = c.curvature.sqrt() if c.metric == "l1" else c.curvature
        x, y = extend(c.queries, c.curvature, -1), extend(c.candidates, c.curvature, 1)
        weights = (1 / (len(unit) * unit)).float()
    metric = "cosine" if weights is None else c.metric
    loss: Tensor = Fused.apply(x.contiguous(), y.contiguous(), weights, scale.float(), targets, c.eps, metric)
    return loss.to(scale.dtype)


def extend(points: Tensor, curvature: Tensor, sign: int) -> Tensor:
    """`blocks.extend`, which writes in place, for autograd."""
    space = curvature.double().sqrt()[:, None, None] * points.double()
    time = (1 + space.square().sum(-1, keepdim=True)).sqrt()
    return torch.cat([sign * space, time, torch.full_like(time, sign)], -1)


class Fused(torch.autograd.Function):
    """Of coordinates x [k b w] and y [k n w]: the product of a factor is the gap, or the cosine."""

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
        ctx.tiles = Tiles(weights, scale, eps, metric)
        ctx.both = targets is None
        if targets is None:
            own = torch.arange(x.shape[1], device=x.device)
            (there, by_row), (back, by_column) = ctx.tiles.softmax(x, y, own), ctx.tiles.softmax(y, x, own)
            loss = (there.mean() + back.mean()) / 2
        else:
            rows, by_row = ctx.tiles.softmax(x, y, targets)
            loss, by_column = rows.mean(), by_row
        ctx.save_for_backward(x, y, by_row.targets, by_row.peaks, by_row.sums, by_column.peaks, by_column.sums)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, y, targets, *saved = ctx.saved_tensors
        by_row = Softmax(targets, *saved[:2])
        by_column = Softmax(targets, *saved[2:]) if ctx.both else None
        grad_x, grad_weights, grad_scale = ctx.tiles.gradients(x, y, by_row, by_column, scalars=True)
        grad_y, _, _ = ctx.tiles.gradients(y, x, by_column, by_row, scalars=False)
        gradient = gradient / (len(targets) * (2 if ctx.both else 1))
        along_x, along_y = (gradient * grad for grad in (grad_x, grad_y))
        along_weights, along_scale = (
            None if grad is None else (gradient * grad).float() for grad in (grad_weights, grad_scale)
        )
        return along_x.to(x.dtype), along_y.to(x.dtype), along_weights, along_scale, None, None, None


@dataclass(frozen=True)
class Tiles:
    """The kernels, and what they need beside coordinates."""

    weights: Tensor | None  # [k]; None: cosine
    scale: Tensor  # []
    eps: float  # least gap
    metric: str  # cosine, l1 or l2

    def softmax(self, x: Tensor, y: Tensor, targets: Tensor) -> tuple[Tensor, Softmax]:
        """The losses of x's points [n] and the sums of their softmax over y's."""
        n_splits, tiles = share(x.shape[1], y.shape[1])
        peaks, sums, own = (x.new_empty(n_splits, x.shape[1], dtype=torch.float32) for _ in range(3))
        with torch.cuda.device_of(x):
            softmax_kernel[grid(x, n_splits)](
                x, y, self.weights, self.scale, targets, peaks, sums, own, *self.sizes(x, y), tiles, **self.constants(x)
            )
        peak = peaks.amax(0)
        total = (sums * (peaks - peak).exp()).sum(0)
        return total.log() + (peak - own.sum(0)), Softmax(targets, peak, total)

    def gradients(
        self, x: Tensor, y: Tensor, by_row: Softmax | None, by_column: Softmax | None, scalars: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Of the sum of the losses: of x in float32, of weights and scale. `by_row` are x's losses, `by_column` y's."""
        n_splits, tiles = share(x.shape[1], y.shape[1])
        n_programs = grid(x, n_splits)[0] * n_splits
        grad_x = x.new_zeros(n_splits, *x.shape, dtype=torch.float32)
        grad_weights = (
            x.new_zeros(n_programs, len(x), dtype=torch.float32) if scalars and self.weights is not None else None
        )
        grad_scale = x.new_empty(n_programs, dtype=torch.float32) if scalars else None
        rows, columns = (
            (None, None, None) if softmax is None else (softmax.targets, softmax.peaks, softmax.sums)
            for softmax in (by_row, by_column)
        )
        with torch.cuda.device_of(x):
            gradient_kernel[grid(x, n_splits)](
                x, y, self.weights, self.scale, *rows, *columns, grad_x, grad_weights, grad_scale,
                *self.sizes(x, y), tiles, **self.constants(x), ONE=len(x) == 1
            )  # fmt: skip
        along_weights, along_scale = (
            None if parts is None else parts.double().sum(0) for parts in (grad_weights, grad_scale)
        )
        return grad_x.sum(0), along_weights, along_scale

    def sizes(self, x: Tensor, y: Tensor) -> tuple[int, int, int, int, float]:
        return x.shape[1], y.shape[1], x.shape[2], x.shape[0], self.eps

    def constants(self, x: Tensor) -> dict[str, Any]:
        depth = min(DEPTH, max(8, triton.next_power_of_2(x.shape[2])))  # tensor cores take 8 at least
        return {
            "METRIC": self.metric, "ROWS": ROWS, "COLUMNS": COLUMNS, "DEPTH": depth,
            "num_warps": WARPS, "num_stages": STAGES,
        }  # fmt: skip


def share(n_rows: int, n_columns: int) -> tuple[int, int]:
    """Into how many splits the columns are cut, and how many tiles each has. Of the sizes alone, whatever the GPU."""
    tiles = triton.cdiv(n_columns, COLUMNS)
    each = triton.cdiv(tiles, min(tiles, triton.cdiv(PROGRAMS, triton.cdiv(n_rows, ROWS))))
    return triton.cdiv(tiles, each), each


def grid(x: Tensor, n_splits: int) -> tuple[int, int]:
    return triton.cdiv(x.shape[1], ROWS), n_splits
