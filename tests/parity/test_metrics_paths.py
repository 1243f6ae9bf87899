"""Compare paths to the root, paths between points and the texts nearest to them with stored numbers.

The numbers come from the authors' code (arrays `trav/*` of metrics.npz). Paths are held to the rounding error of
float32, relative to the largest value. Indices and masks must be equal, unless rounding decides.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.parity.report import read
from trainer.evaluation.metrics.paths import cone_margins, nearest, path_between, path_to_root
from trainer.evaluation.metrics.spaces import Lorentz, Sphere
from trainer.geometry import lorentz

TOLERANCE = 1e-5
MIN_RADIUS = 0.1
SURE_RAD = 1e-3
"""Margins of cones below this may have another sign in float32."""


def check(npz: Any, meta: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Name, error and tolerance of each array."""
    stored = {key[5:]: torch.from_numpy(npz[key]) for key in npz if key.startswith("trav/")}
    steps = meta["traversal_steps"]
    space = Lorentz(torch.tensor(meta["zs"]["curv"]))
    image, pool = stored["meru/image"][None], stored["meru/pool"]
    path = path_to_root(space, image, steps)
    target = stored["hyco/target"][None]
    curvatures = torch.from_numpy(npz["zs/curvs"])
    factors = stored["phyclip/image"].view(len(curvatures), 1, -1)
    factor_path = path_to_root(Lorentz(curvatures[:, None]), factors, steps)
    to_center = path_to_root(Sphere(stored["clip/root"]), stored["clip/image"][None], steps)

    def score(queries: Tensor, candidates: Tensor) -> Tensor:
        return lorentz.pairwise_inner(queries, candidates, space.curvature)

    margins = cone_margins(space, pool, path, MIN_RADIUS)
    theirs = stored["meru/masked"]
    flipped = (margins > 0) != theirs[:, :-1]
    is_sure = margins.abs() > SURE_RAD
    root_is_masked = theirs[:, -1].sum().item()
    everything = torch.cat([pool, torch.zeros_like(image)])
    scores = score(path.to(pool), everything)
    filtered, plain = (
        nearest(score, space, path, pool, mask) for mask in (torch.ones(len(pool), dtype=torch.bool), None)
    )
    as_coded, by_paper = (path_between(space, image, target, steps, rule) for rule in ("released", "paper"))
    return [
        ("trav/meru/interp", relative_error(path, stored["meru/interp"]), TOLERANCE),
        ("trav/meru/masked", float((flipped & is_sure).sum()) + root_is_masked, 0.0),
        ("trav/meru/nn", count_worse(filtered, stored["meru/nn"], scores, flipped.any(1)), 0.0),
        ("trav/hyco/nn", count_worse(plain, stored["hyco/nn"], scores, torch.zeros(steps, dtype=torch.bool)), 0.0),
        ("trav/hyco/interp_as_coded", relative_error(as_coded, stored["hyco/interp_as_coded"]), TOLERANCE),
        ("trav/hyco/interp_paper", relative_error(by_paper, stored["hyco/interp_paper"]), TOLERANCE),
        ("trav/clip/interp", relative_error(to_center, stored["clip/interp"]), TOLERANCE),
        (
            "trav/phyclip/interp",
            relative_error(factor_path.movedim(0, 1).flatten(1), stored["phyclip/interp"]),
            TOLERANCE,
        ),
    ]


def count_worse(ours: Tensor, theirs: Tensor, scores: Tensor, ignored: Tensor) -> float:
    """Number of steps [s] with another neighbor whose score differs by more than rounding; `ignored` [s] are left out."""
    if ours.shape != theirs.shape:
        return math.inf
    gaps = (scores.gather(1, ours[:, None]) - scores.gather(1, theirs[:, None])).abs().squeeze(1)
    return float(((gaps > TOLERANCE * scores.abs().max()) & ~ignored).sum())


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference divided by the largest value; infinite for another shape or non-finite numbers."""
    if ours.shape != theirs.shape:
        return math.inf
    error = float((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max().clamp(min=1e-30))
    return error if np.isfinite(error) else math.inf


def test_all_paths_and_neighbours_equal_the_stored_ones_and_a_changed_array_is_found() -> None:
    table, meta = read("metrics")
    rows = check(table, meta)
    assert [row for row in rows if not row[1] <= row[2]] == []
    for key, _, _ in rows:
        changed = table[key].copy()
        changed.flat[3] = not changed.flat[3] if changed.dtype == bool else changed.flat[3] * 1.01 + 1
        failed = [name for name, error, limit in check(table | {key: changed}, meta) if not error <= limit]
        assert failed == [key]
