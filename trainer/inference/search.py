"""Comparisons of many points: nearest neighbours by a model's distance, exact or by inner products; entailment.

Shapes: n queries, m candidates, k neighbours, d width of a point, w width of the rows of an index. Points are [n d], or
[*k n d] in a product of factors.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from trainer.evaluation.metrics.ranking import AT_ONCE, pieces, top_k
from trainer.evaluation.metrics.spaces import Ball, Lorentz, ball_to_lorentz, space_of
from trainer.geometry import euclidean, lorentz
from trainer.models.clip import CLIP
from trainer.models.cones import Cones
from trainer.models.dual_encoder import DualEncoder
from trainer.models.euclip import EuCLIP
from trainer.models.hyperbolic import Hyperbolic
from trainer.models.poinclip import PoinCLIP

TOLERANCE: Final = 1e-5
"""Two points are the same, and a point is the root, up to this share of the norm of the more specific one: float32
encodes a text in two batches with differences of 1e-6."""

MAX_PAIRS: Final = 2**18  # maximum number of pairs that `entailment` processes at once, to limit its memory


class Neighbours(NamedTuple):
    """The nearest candidates of each query, nearest first."""

    distances: Tensor  # [n k]
    indices: Tensor  # [n k]


@dataclass(frozen=True, kw_only=True)
class PointIndex:
    """Candidates as rows whose inner product with the row of a query decides which is nearest.

    For CLIP, the rows are the unit vectors. For a hyperbolic space, they are the coordinates of the hyperboloid, and the
    inner product is the Lorentzian one, a decreasing function of the distance acosh(-c <x, y>) / sqrt(c) (MERU eq. 4);
    the ball is mapped to the hyperboloid, which keeps distances. Those rows are float64, because in float32 the products
    of close points have no correct digits. For flat space, the inner product is minus the squared distance.

    `rows` and `query_rows` can also be given to a library of approximate search by inner products.
    """

    rows: Tensor  # [m w]
    model: DualEncoder

    def query_rows(self, queries: Tensor) -> Tensor:
        """The rows [n w] of queries [*k n d]."""
        return inner_rows(self.model, queries, -1)

    def distances(self, products: Tensor) -> Tensor:
        """Distances [*] from inner products [*] of rows, in float32."""
        if isinstance(self.model, EuCLIP):
            return (-products).clamp(min=0).sqrt().float()
        if not isinstance(self.model, Hyperbolic):
            return 1 - products
        space = space_of(self.model)
        assert isinstance(space, Lorentz | Ball)
        c = space.curvature.double().squeeze()  # that of the rows: another rounding would keep equal points apart
        floor = self.model.eps * (2 if isinstance(self.model, PoinCLIP) else 1)  # as in `poincare_similarity`
        return (lorentz.acosh1p((-c * products - 1).clamp(min=floor)) / c.sqrt()).float()

    @torch.no_grad()
    def search(self, queries: Tensor, k: int) -> Neighbours:
        """The min(k, m) nearest candidates of queries [*k n d], by matrix products of blocks of rows."""
        rows = self.query_rows(queries)
        _, indices = top_k(lambda x, y: x @ y.T, rows, self.rows, check_k(k))  # its products are rounded to float32
        found = [torch.zeros(0, indices.shape[1], device=rows.device)]
        at_once = max(1, AT_ONCE // max(1, indices.shape[1]))
        for part in pieces(len(rows), at_once):
            chosen = self.rows[indices[part].to(self.rows.device)]
            found.append(self.distances(torch.linalg.vecdot(rows[part, None], chosen)))
        return Neighbours(torch.cat(found), indices.to(rows.device))


@torch.no_grad()
def inner_rows(model: DualEncoder, points: Tensor, sign: int) -> Tensor:
    """Rows [n w] of points [*k n d] as in `PointIndex`; `sign` is that of the time components, -1 for queries.

    Raises UserError for a product of several factors, where no inner product orders candidates as the distance does.
    """
    if isinstance(model, EuCLIP):
        return euclidean.inner_coordinates(points.double(), sign)
    if not isinstance(model, Hyperbolic):
        if isinstance(model, CLIP):
            return points
        raise UserError(f"{type(model).__name__} is not known to rank by an inner product; search by points")
    if points.ndim == 3 and len(points) > 1:
        raise UserError(
            f"{type(model).__name__} adds the distances of {len(points)} factors, which no inner product orders; "
            "search by points, which compares all"
        )
    points = points[0] if points.ndim == 3 else points
    space = space_of(model)
    assert isinstance(space, Lorentz | Ball)
    c = space.curvature.double().squeeze()
    points = ball_to_lorentz(points, c) if isinstance(space, Ball) else points.double()
    return lorentz.inner_coordinates(points, c, sign)


@torch.no_grad()
def search(model: DualEncoder, queries: Tensor, candidates: Tensor, k: int) -> Neighbours:
    """The min(k, m) nearest candidates [*k m d] of queries [*k n d], by the distances of all pairs, in blocks.

    Of candidates at equal distances, the first ones are found.
    """
    minus, indices = top_k(lambda x, y: -model.distance(x, y), queries, candidates, check_k(k))
    return Neighbours(-minus.to(queries.device), indices.to(queries.device))


def check_k(k: int) -> int:
    """Return the number of neighbours. Raises UserError if it is not positive."""
    if k < 1:
        raise UserError(f"k is {k}; give 1 or more neighbours")
    return k


def entailment_margins(model: Cones, general: Tensor, specific: Tensor, aperture_scale: float = 1.0) -> Tensor:
    """Half-apertures at `general` [*k n d] minus exterior angles towards `specific` [*k m d]: [n m], least of factors.

    The angle is 0 from the root and between equal points, up to `TOLERANCE`: the root entails all, and a point itself.
    """
    n, m = general.shape[-2], specific.shape[-2]
    if not (n and m):
        return torch.zeros(n, m, device=general.device)
    rows_at_once = max(1, MAX_PAIRS // m)
    found = []
    for start in range(0, n, rows_at_once):
        part = general.narrow(-2, start, min(rows_at_once, n - start))
        apexes = part.repeat_interleave(m, dim=-2)
        points = specific.repeat(*(1 for _ in specific.shape[:-2]), part.shape[-2], 1)
        angle, aperture = model.cone(apexes, points)
        size = TOLERANCE * points.norm(dim=-1)
        is_least = (apexes.norm(dim=-1) <= size) | ((points - apexes).norm(dim=-1) <= size)
        margin = aperture_scale * aperture - angle.masked_fill(is_least, 0)
        found.append((margin if margin.ndim == 1 else margin.amin(0)).view(-1, m))
    return torch.cat(found)
