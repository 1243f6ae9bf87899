"""Similarity matrices, computed one block of rows at a time, with gradients that do not use autograd.

The similarity of each model is a function of inner products x . y. CLIP's cosine is the product itself. Hyperbolic
distances d follow from

    coshm1 = cosh(sqrt(c) d) - 1 = x_t y_t - c x . y - 1,      x_t = sqrt(1 + c|x|^2)

which is one inner product of vectors with two more entries (`coshm1_coordinates`). In float64 this product is as
accurate for close points and for points near the origin as the longer float32 formula of `lorentz.pairwise_distance`.
For wide points, a CPU computes it in float32, which takes half the time, and only the entries of close points again in
float64.

Shapes: b queries, r of them in a block of rows, n candidates, k factors, d width of one factor.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.geometry.poincare import one_minus_squared_norm
from trainer.geometry.types import Metric

CACHE_NUMBERS = 2**17
"""Numbers that stay in the cache of one CPU core from one operation to the next: the size of a tile of narrow factors."""
MIN_FLOAT32_WIDTH = 64
"""Minimum width of points for products in float32; below, the search for close entries costs more than it saves."""
CLOSE = 1 / 8
"""Points are close if coshm1 is less than this share of x_t y_t - 1: their product in float32 loses three bits or more."""
MANY = 1 / 32
"""Share of close entries in a tile above which the product of the whole tile is computed in float64."""


class Gradients(NamedTuple):
    """Gradients of a loss with respect to the inputs of a similarity matrix."""

    queries: Tensor  # [*k b d]
    candidates: Tensor  # [*k n d]
    curvature: Tensor | None  # [k]; None for the cosine


@dataclass(frozen=True, kw_only=True)
class LazySimilarity:
    """The inputs and the formula of a similarity matrix [b n] that has not been computed.

    Without `curvature` the formula is the inner product, otherwise minus the distance in a product of Lorentz factors.

    Attributes:
        queries: points [k b d] of k factors, 1 in a single space; for inner products [b d].
        candidates: points [k n d]; for inner products [n d].
        curvature: c of each factor [k]; None: inner products.
        metric: how distances of factors are combined, as in `product.combine`.
        eps: minimum of coshm1 = cosh(sqrt(c) d) - 1.
    """

    queries: Tensor
    candidates: Tensor
    curvature: Tensor | None = None
    metric: Metric = "l1"
    eps: float = 0.0

    def row_blocks(self, max_rows: int, dtype: torch.dtype) -> "RowBlocks":
        """The matrix in blocks of rows.

        For each block, call `forward`, then `backward` with the gradient of what `forward` returned. `gradients`
        returns the sums over all blocks.

        Args:
            max_rows: most rows of a block.
            dtype: that of all operations after the inner products of points in Lorentz factors.

        Returns:
            An object with `forward`, `backward` and `gradients`.
        """
        return CosineBlocks(self) if self.curvature is None else DistanceBlocks(self, self.curvature, max_rows, dtype)


def cosine_similarity(x: Tensor, y: Tensor) -> LazySimilarity:
    """Inner products of queries and candidates; for unit vectors these are cosines.

    Args:
        x: queries [b d].
        y: candidates [n d].

    Returns:
        The similarity [b n], not yet computed.
    """
    return LazySimilarity(queries=x, candidates=y)


def lorentz_similarity(x: Tensor, y: Tensor, curvature: Tensor, eps: float, metric: Metric = "l1") -> LazySimilarity:
    """`-lorentz.pairwise_distance`, in a product of factors combined by `product.combine`.

    Args:
        x: queries [b d], or [k b d] of k factors.
        y: candidates [n d] or [k n d].
        curvature: c, [] or [k 1].
        eps: distances in a factor are at least acosh(1 + eps)/sqrt(c).
        metric: how distances of factors are combined.

    Returns:
        The similarity [b n], not yet computed.
    """
    x, y = (p.reshape(-1, *p.shape[-2:]) for p in (x, y))
    return LazySimilarity(queries=x, candidates=y, curvature=curvature.reshape(-1), metric=metric, eps=eps)


def poincare_similarity(x: Tensor, y: Tensor, curvature: Tensor, eps: float) -> LazySimilarity:
    """`-poincare.pairwise_distance`.

    The isometry p -> 2p / (1 - c|p|^2) maps the points to Lorentz space components. There the distance
    2 asinh(u) / sqrt(c) is acosh(1 + 2u^2) / sqrt(c), so coshm1 is 2u^2, and its minimum is twice that of u^2.

    Args:
        x: queries, points of the ball [b d].
        y: candidates, points of the ball [n d].
        curvature: c [].
        eps: minimum of u^2, as in `poincare.distance`.

    Returns:
        The similarity [b n], not yet computed.
    """
    c = curvature.double()
    space = [2 * p / one_minus_squared_norm(p, c) for p in (x.double(), y.double())]
    return lorentz_similarity(space[0], space[1], curvature, 2 * eps)


class CosineBlocks:
    """Row blocks of the similarity x . y."""

    def __init__(self, inputs: LazySimilarity) -> None:
        self.x, self.y = inputs.queries, inputs.candidates
        self.grad_x, self.grad_y = torch.zeros_like(self.x), torch.zeros_like(self.y)

    def forward(self, rows: slice) -> Tensor:
        """Similarities [r n] of the queries `rows` with all candidates."""
        return self.x[rows] @ self.y.T

    def backward(self, rows: slice, grad: Tensor) -> None:
        """Accumulate gradients, given the gradient [r n] of the similarities that `forward` returned for these rows."""
        self.grad_x[rows] = grad @ self.y
        self.grad_y.addmm_(grad.T, self.x[rows])

    def gradients(self) -> Gradients:
        return Gradients(self.grad_x, self.grad_y, None)


class Tile(NamedTuple):
    """Some factors of a block."""

    factors: slice
    distances: Tensor  # view of `DistanceBlocks.distances`
    sinhs: Tensor  # view of `DistanceBlocks.sinhs`


class DistanceBlocks:
    """Row blocks of the similarity -sum_f w_f h_f (l1) or -sqrt(sum_f w_f h_f^2) (l2) over k hyperbolic factors.

    h = sqrt(c) d is the distance in a factor in units of 1/sqrt(c), and s its sinh:

        h = acosh(1 + coshm1) = log1p(coshm1 + s),      s = sinh(h) = sqrt(coshm1 (coshm1 + 2))

    Since dh/dcoshm1 = 1/s, `backward` reuses h and s of the block and computes no inner products and no logarithms. The
    derivative is 0 where coshm1 is clamped to its minimum. The weights w_f are 1/(k sqrt(c_f)) for l1, the mean of the
    distances, and 1/(k c_f) for l2, the root of the mean of their squares.
    """

    def __init__(self, inputs: LazySimilarity, curvature: Tensor, max_rows: int, dtype: torch.dtype) -> None:
        self.metric, self.eps, self.curvature = inputs.metric, inputs.eps, curvature.to(dtype)
        x, y = inputs.queries, inputs.candidates
        self.n_factors, self.n, _ = y.shape
        unit = self.curvature.sqrt() if self.metric == "l1" else self.curvature
        self.weights = 1 / (self.n_factors * unit)
        self.points_x, self.points_y = x, y
        self.rise_x, self.rise_y = (time_minus_1(p, curvature) for p in (x, y))
        # A GPU cannot look for close entries, since their number would have to reach the host.
        is_large = x.device.type == "cpu" and x.shape[-1] >= MIN_FLOAT32_WIDTH
        product_dtype = dtype if is_large else torch.float64
        self.product_x = coshm1_coordinates(x, self.rise_x, curvature, -1, product_dtype)
        self.product_y = coshm1_coordinates(y, self.rise_y, curvature, 1, product_dtype)
        self.x, self.y = self.product_x.to(dtype), self.product_y.to(dtype)
        self.is_exact = product_dtype == torch.float64
        # On a CPU, tiles are so small that the output of an operation is still in the cache for the next one.
        in_cache = max(1, CACHE_NUMBERS // (max_rows * self.n)) if x.device.type == "cpu" else self.n_factors
        self.tile_factors = min(self.n_factors, in_cache)
        # h and s of one block.
        self.distances, self.sinhs = (self.x.new_empty(self.n_factors * max_rows * self.n) for _ in range(2))
        # Weighted sums of the coordinates of y for each query and of x for each candidate, as `gradients` needs them.
        self.sum_x, self.sum_y_t = torch.zeros_like(self.x), torch.zeros_like(self.y.mT.contiguous())
        self.grad_weights = torch.zeros_like(self.weights)
        self.min_sinh = sinh_of(self.eps, dtype)

    def forward(self, rows: slice) -> Tensor:
        self.combined = self.x.new_zeros(rows.stop - rows.start, self.n)
        for factors, h, s in self.tiles(rows):
            if self.is_exact:
                h.copy_(self.product_x[factors, rows] @ self.product_y[factors].mT)
            else:
                torch.bmm(self.product_x[factors, rows], self.product_y[factors].mT, out=h)
                self.correct_close(h, factors, rows, scratch=s)
            h.clamp_(min=self.eps)
            torch.add(h, 2, out=s).mul_(h).sqrt_()
            h.add_(s).log1p_()
            terms = h if self.metric == "l1" else h.square()
            self.combined.view(-1).add_(self.weights[factors] @ terms.view(len(h), -1))
        if self.metric == "l2":
            self.combined.sqrt_()
        return -self.combined

    def correct_close(self, coshm1: Tensor, factors: slice, queries: slice, scratch: Tensor) -> None:
        """Compute the entries of close points in `coshm1` [k r n] again in float64, since they are small differences."""
        rise_x, rise_y, c = self.rise_x[factors, queries], self.rise_y[factors].mT, self.curvature[factors].double()
        x, y = self.points_x[factors, queries], self.points_y[factors]
        bounds = (CLOSE * rise_x, CLOSE * (1 + rise_x), rise_y)
        torch.addcmul(*(bound.to(coshm1.dtype) for bound in bounds), out=scratch)  # CLOSE * (x_t y_t - 1)
        f, i, j = (coshm1 < scratch).nonzero(as_tuple=True)
        if len(f) > MANY * coshm1.numel():
            inner = (c[:, None, None] * x) @ y.double().mT
            coshm1.copy_(torch.addcmul(rise_x, 1 + rise_x, rise_y).sub_(inner))
        elif len(f):
            inner = c[f] * torch.linalg.vecdot(x[f, i].double(), y[f, j].double())
            a, b = rise_x[f, i, 0], rise_y[f, 0, j]
            coshm1[f, i, j] = torch.addcmul(a, 1 + a, b).sub_(inner).to(coshm1.dtype)

    def backward(self, rows: slice, grad: Tensor) -> None:
        grad = grad if self.metric == "l1" else grad / self.combined
        for factors, h, s in self.tiles(rows):
            torch.threshold_(s, self.min_sinh, math.inf)
            s.reciprocal_().mul_(grad)
            if self.metric == "l2":
                s.mul_(h)
                h = h.square().div_(2)
            self.grad_weights[factors] -= h.view(len(h), -1) @ grad.reshape(-1)
            self.sum_x[factors, rows] = torch.bmm(s, self.y[factors])
            self.sum_y_t[factors].baddbmm_(self.x[factors, rows].mT, s)

    def gradients(self) -> Gradients:
        """Accumulated gradients with respect to queries, candidates and curvature.

        Let S be the sum of (y, y_t) over the candidates, weighted by the gradients with respect to coshm1. The gradient
        with respect to x is c (x S_t / x_t - S); that with respect to y is analogous. coshm1 depends on the curvature
        only through sqrt(c) x and sqrt(c) y, so the gradient with respect to the curvature follows from these two.
        """
        sum_y = self.sum_y_t.mT
        sums = ((-self.x, self.rise_x, self.sum_x, self.sum_x[..., -2:-1]),
                (self.y, self.rise_y, -sum_y, sum_y[..., -2:].sum(-1, keepdim=True)))  # fmt: skip
        root = self.curvature.sqrt()
        grads, along_points = [], torch.zeros_like(root)
        for scaled, rise, space, time in sums:
            direction = scaled[..., :-2] * (time / (1 + rise)).to(scaled.dtype) - space[..., :-2]
            grads.append(direction.mul_(-(self.weights * root)[:, None, None]))
            along_points += (grads[-1] * scaled[..., :-2]).sum((1, 2)) / (2 * root)
        power = 0.5 if self.metric == "l1" else 1.0
        grad_curvature = (along_points - power * self.grad_weights * self.weights) / self.curvature
        return Gradients(grads[0], grads[1], grad_curvature)

    def tiles(self, rows: slice) -> Iterator[Tile]:
        """Split the block `rows` into tiles."""
        shape = (self.n_factors, rows.stop - rows.start, self.n)
        distances, sinhs = (buffer[: math.prod(shape)].view(shape) for buffer in (self.distances, self.sinhs))
        for factor in range(0, self.n_factors, self.tile_factors):
            factors = slice(factor, min(factor + self.tile_factors, self.n_factors))
            yield Tile(factors, distances[factors], sinhs[factors])


RowBlocks = CosineBlocks | DistanceBlocks


def time_minus_1(points: Tensor, curvature: Tensor) -> Tensor:
    """x_t - 1 of points [k b d] in float64, [k b 1]; accurate near the origin, where x_t rounds to 1."""
    square = torch.linalg.vector_norm(points, dim=-1, keepdim=True, dtype=torch.float64).square_()
    square *= curvature.double()[:, None, None]
    return square / (1 + (1 + square).sqrt())


def coshm1_coordinates(points: Tensor, rise: Tensor, curvature: Tensor, sign: int, dtype: torch.dtype) -> Tensor:
    """Coordinates [k b d+2] whose inner product is coshm1, of points [k b d] with `time_minus_1` [k b 1].

    Those of queries, with sign -1, are (-sqrt(c) x, x_t - 1, 1); those of candidates are (sqrt(c) y, y_t, y_t - 1).
    Their inner product has no terms that are larger than x_t y_t - 1.
    """
    space = (points * (sign * curvature.double().sqrt()[:, None, None])).to(dtype)
    rise, time = rise.to(dtype), (rise + 1).to(dtype)
    return torch.cat([space, *((rise, torch.ones_like(rise)) if sign < 0 else (time, rise))], -1)


@torch.compiler.assume_constant_result
def sinh_of(coshm1: float, dtype: torch.dtype) -> float:
    """sqrt(coshm1 (coshm1 + 2)), rounded as the operations on tensors of `dtype` round it."""
    value = torch.tensor(coshm1, dtype=dtype)
    return float((value + 2).mul_(value).sqrt_())
