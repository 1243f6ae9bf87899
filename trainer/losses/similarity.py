"""Similarities of queries with candidates a block at a time, forwards and backwards, without autograd.

The similarities of all models are functions of products x . y. CLIP's cosine is the product itself; distances of
hyperbolic space follow from

    gap = cosh(sqrt(c) d) - 1 = x_t y_t - c x . y - 1,      x_t = sqrt(1 + c|x|^2)

which is one product of coordinates with two more entries. In float64 it keeps, for neighbours and near the origin, what
`lorentz.pairwise_distance` gets from a longer formula in float32.

Shapes: b queries, r of them in a block, n candidates, k factors, d width of one factor.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trainer.geometry.poincare import rim_gap
from trainer.geometry.product import Metric

CACHED = 2**17  # numbers that stay in a core's own cache from one operation to the next
ROWS = 64  # of a part: with fewer a product would do little else than read the candidates


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Queries and candidates, and how they compare: by the cosine, or by minus the distance of hyperbolic factors."""

    queries: Tensor  # [k b d]; cosine: [b d]
    candidates: Tensor  # [k n d]; cosine: [n d]
    curvature: Tensor | None = None  # [k]; None: cosine
    metric: Metric = "l1"
    eps: float = 0.0  # least gap

    def blocks(self, rows: int, dtype: torch.dtype) -> "Blocks":
        """What computes at most `rows` queries at a time, in `dtype` after the products."""
        return Cosines(self) if self.curvature is None else Distances(self, self.curvature, rows, dtype)


class Blocks(Protocol):
    def similarities(self, rows: slice) -> Tensor:
        """[r n] of these queries with all candidates."""

    def accumulate(self, rows: slice, slopes: Tensor) -> None:
        """Add to the gradients, given that [r n] of the similarities that were asked for last."""

    def gradients(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Of queries, candidates and curvature."""


def cosine(queries: Tensor, candidates: Tensor) -> Comparison:
    """Of directions [b d] and [n d]."""
    return Comparison(queries=queries, candidates=candidates)


def lorentz_distance(x: Tensor, y: Tensor, curvature: Tensor, eps: float, metric: Metric = "l1") -> Comparison:
    """`-lorentz.pairwise_distance` in one space, [b d] with c a scalar; of k factors, [k b d] with c [k 1], `combine`d."""
    x, y = (p.reshape(-1, *p.shape[-2:]) for p in (x, y))
    return Comparison(queries=x, candidates=y, curvature=curvature.reshape(-1), metric=metric, eps=eps)


def poincare_distance(x: Tensor, y: Tensor, curvature: Tensor, eps: float) -> Comparison:
    """`-poincare.pairwise_distance` of points [b d] of the ball, through the isometry p -> 2p / (1 - c|p|^2).

    d = 2 asinh(u) / sqrt(c) is acosh(1 + 2u^2) / sqrt(c), so the gap is 2u^2.
    """
    c = curvature.double()
    far = [2 * p / rim_gap(p, c) for p in (x.double(), y.double())]
    return lorentz_distance(far[0], far[1], curvature, 2 * eps)


class Cosines:
    """similarity = x . y."""

    def __init__(self, comparison: Comparison) -> None:
        self.x, self.y = comparison.queries, comparison.candidates
        self.grad_x, self.grad_y = torch.zeros_like(self.x), torch.zeros_like(self.y)

    def similarities(self, rows: slice) -> Tensor:
        return self.x[rows] @ self.y.T

    def accumulate(self, rows: slice, slopes: Tensor) -> None:
        self.grad_x[rows] = slopes @ self.y
        self.grad_y.addmm_(slopes.T, self.x[rows])

    def gradients(self) -> tuple[Tensor, Tensor, None]:
        return self.grad_x, self.grad_y, None


class Distances:
    """similarity = -sum_f w_f h_f (l1) or -sqrt(sum_f w_f h_f^2) (l2), h = acosh(1 + max(gap, eps)).

    h = log1p(gap + s) and dh/dgap = 1/s with s = sqrt(gap (gap + 2)), so going back needs neither products nor
    logarithms again. Where the gap is at its floor the slope is 0. h and s of one block are all that is kept.
    w_f = 1/(k sqrt(c_f)) for the mean of distances, 1/(k c_f) for that of their squares.
    """

    def __init__(self, comparison: Comparison, curvature: Tensor, rows: int, dtype: torch.dtype) -> None:
        self.metric, self.eps, self.curvature = comparison.metric, comparison.eps, curvature.to(dtype)
        x, y = comparison.queries, comparison.candidates
        self.n_factors, self.n, _ = y.shape
        unit = self.curvature.sqrt() if self.metric == "l1" else self.curvature
        self.weights = 1 / (self.n_factors * unit)
        self.long_x, self.time_x = extend(x, curvature, -1)
        self.long_y, self.time_y = extend(y, curvature, 1)
        self.x, self.y = (
            torch.cat([p.to(dtype), time.to(dtype)], -1) for p, time in ((x, self.time_x), (y, self.time_y))
        )
        # On a CPU few factors, or rows of one factor, at a time: so one operation finds in the cache what the last wrote.
        cached = CACHED if x.device.type == "cpu" else self.n_factors * rows * self.n
        self.factor_step = min(self.n_factors, max(1, cached // (rows * self.n)))
        self.row_step = min(rows, max(ROWS, cached // self.n))
        self.products = self.long_x.new_empty(self.factor_step * self.row_step * self.n)
        self.angles, self.slants = (self.x.new_empty(self.n_factors * rows * self.n) for _ in range(2))
        self.grad_x, self.grad_y_t = torch.zeros_like(self.x), torch.zeros_like(self.y.mT.contiguous())
        self.grad_weights = torch.zeros_like(self.weights)
        least = torch.tensor(self.eps, dtype=dtype)
        self.least_slant = float((least + 2).mul_(least).sqrt_())

    def similarities(self, rows: slice) -> Tensor:
        self.distance = self.x.new_zeros(rows.stop - rows.start, self.n)
        for factors, queries, local, h, s in self.parts(rows):
            gap = self.products[: h.numel()].view(h.shape)
            torch.bmm(self.long_x[factors, queries], self.long_y[factors].mT, out=gap)
            h.copy_(gap).clamp_(min=self.eps)
            torch.add(h, 2, out=s).mul_(h).sqrt_()
            h.add_(s).log1p_()
            far = h if self.metric == "l1" else h.square()
            self.distance[local].view(-1).add_(self.weights[factors] @ far.view(len(h), -1))
        if self.metric == "l2":
            self.distance.sqrt_()
        return -self.distance

    def accumulate(self, rows: slice, slopes: Tensor) -> None:
        slopes = slopes if self.metric == "l1" else slopes / self.distance
        for factors, queries, local, h, s in self.parts(rows):
            slope = slopes[local]
            torch.threshold_(s, self.least_slant, math.inf)
            s.reciprocal_().mul_(slope)
            if self.metric == "l2":
                s.mul_(h)
                h = h.square().div_(2)
            self.grad_weights[factors] -= h.view(len(h), -1) @ slope.reshape(-1)
            self.grad_x[factors, queries] = torch.bmm(s, self.y[factors])
            self.grad_y_t[factors].baddbmm_(self.x[factors, queries].mT, s)

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """The sums of the slopes times (y, y_t) become gradients of x: c (x sum y_t / x_t - sum y).

        Through the gap the loss depends on sqrt(c) x and sqrt(c) y alone, so its slope in c follows from theirs.
        """
        grads = []
        for p, sums, time in ((self.x, self.grad_x, self.time_x), (self.y, self.grad_y_t.mT, self.time_y)):
            across = p[..., :-1] * (sums[..., -1:] / time).to(p.dtype) - sums[..., :-1]
            grads.append(across.mul_(-(self.weights * self.curvature)[:, None, None]))
        along = sum((grad * p[..., :-1]).sum((1, 2)) for grad, p in zip(grads, (self.x, self.y), strict=True)) / 2
        power = 0.5 if self.metric == "l1" else 1.0
        grad_curvature = (along - power * self.grad_weights * self.weights) / self.curvature
        return grads[0], grads[1], grad_curvature

    def parts(self, rows: slice) -> Iterator[tuple[slice, slice, slice, Tensor, Tensor]]:
        """Factors, queries, the same counted from the first of the rows, and h and s of these."""
        shape = (self.n_factors, rows.stop - rows.start, self.n)
        angles, slants = (kept[: math.prod(shape)].view(shape) for kept in (self.angles, self.slants))
        for factor in range(0, self.n_factors, self.factor_step):
            for start in range(0, shape[1], self.row_step):
                factors = slice(factor, min(factor + self.factor_step, self.n_factors))
                local = slice(start, min(start + self.row_step, shape[1]))
                queries = slice(rows.start + local.start, rows.start + local.stop)
                yield factors, queries, local, angles[factors, local], slants[factors, local]


def extend(points: Tensor, curvature: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """(space, time, constant) in float64 [k b d+2], such that extend(x, -1) . extend(y, 1) is the gap; and the time."""
    extended = points.new_empty(*points.shape[:-1], points.shape[-1] + 2, dtype=torch.float64)
    space, time = extended[..., :-2], extended[..., -2:-1]
    torch.mul(points, curvature.double().sqrt()[:, None, None], out=space)
    torch.linalg.vector_norm(space, dim=-1, keepdim=True, out=time)
    time.square_().add_(1).sqrt_()
    if sign < 0:
        space.neg_()
    extended[..., -1] = sign
    return extended, time
