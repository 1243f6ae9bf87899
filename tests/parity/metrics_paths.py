"""Compare paths to the root, paths between points and the texts nearest to them with stored numbers.

The numbers come from the authors' code (arrays `trav/*` of metrics.npz). Paths are held to the rounding error of
float32, relative to the largest value; indices and masks must be equal.
"""

import json
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.evaluation.analysis.paths import entails_steps, nearest, path_between, path_to_root
from trainer.evaluation.analysis.spaces import Lorentz, Sphere
from trainer.geometry import lorentz

TOLERANCE = 1e-5
MIN_RADIUS = 0.1
KEYS = (
    *("meru/image", "meru/pool", "meru/interp", "meru/nn", "meru/masked"),
    *("hyco/nn", "hyco/target", "hyco/interp_as_coded", "hyco/interp_paper"),
    *("clip/image", "clip/root", "clip/interp", "phyclip/image", "phyclip/interp"),
)


def check(npz: Any) -> list[tuple[str, float, float]]:
    """Name, error and tolerance of each array. The error of an array that the file lacks is infinite."""
    missing = [f"trav/{key}" for key in KEYS if f"trav/{key}" not in npz]
    if missing:
        return [(key, math.inf, 0.0) for key in missing]
    stored = {key: torch.from_numpy(npz[f"trav/{key}"]) for key in KEYS}
    meta = json.loads(str(npz["meta_json"]))
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

    masked = ~entails_steps(space, torch.cat([pool, torch.zeros_like(image)]), path, MIN_RADIUS)
    masked[:, -1] = False  # the root, the last candidate, entails all steps
    all_texts = torch.ones(len(pool), dtype=torch.bool)
    return [
        ("trav/meru/interp", relative_error(path, stored["meru/interp"]), TOLERANCE),
        ("trav/meru/masked", count_differences(masked, stored["meru/masked"]), 0.0),
        ("trav/meru/nn", count_differences(nearest(score, space, path, pool, all_texts), stored["meru/nn"]), 0.0),
        ("trav/hyco/nn", count_differences(nearest(score, space, path, pool), stored["hyco/nn"]), 0.0),
        *(
            (
                f"trav/hyco/{key}",
                relative_error(path_between(space, image, target, steps, rule), stored[f"hyco/{key}"]),
                tol,
            )
            for key, rule, tol in (("interp_as_coded", "released", TOLERANCE), ("interp_paper", "paper", TOLERANCE))
        ),
        ("trav/clip/interp", relative_error(to_center, stored["clip/interp"]), TOLERANCE),
        (
            "trav/phyclip/interp",
            relative_error(factor_path.movedim(0, 1).flatten(1), stored["phyclip/interp"]),
            TOLERANCE,
        ),
    ]


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference divided by the largest value; infinite for another shape or non-finite numbers."""
    if ours.shape != theirs.shape:
        return math.inf
    error = float((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max().clamp(min=1e-30))
    return error if np.isfinite(error) else math.inf


def count_differences(ours: Tensor, theirs: Tensor) -> float:
    """Number of entries that differ; infinite for another shape."""
    return float((ours != theirs).sum()) if ours.shape == theirs.shape else math.inf
