"""Compare `trainer.geometry.poincare` with a table of functions.

The results in the table were computed in the Lorentz model and mapped to the ball by the isometry. In float64 the
tolerance is 1e-6, since the apertures and self-distances of the table contain the eps of the Lorentz code. In float32
it is larger, since the points themselves are rounded.
"""

import math
from typing import Any

import numpy as np
import torch

from trainer.geometry import poincare
from trainer.losses.functional import entropy

INPUTS = ("ball_x", "ball_y", "ball_z", "tangent_poincare_lambda2", "tangent_riemannian")
TOLERANCES = {torch.float64: 1e-6, torch.float32: 2e-4}


def compare(table: Any, meta: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per function, curvature and precision: the largest error relative to max(1, |value|), and the tolerance."""
    rows = []
    for index, curvature in enumerate(meta["curv"]):
        entry = {key.split("/")[1]: table[key] for key in table if key.startswith(f"c{index}/")}
        for dtype, tolerance in TOLERANCES.items():
            c = torch.tensor(curvature, dtype=dtype)
            x, y, z, tangent, riemannian = (torch.from_numpy(entry[name]).to(dtype) for name in INPUTS)
            results = {
                "dist_xz": poincare.pairwise_distance(x, z, c),
                "dist_xz elementwise": poincare.distance(x[:, None], z[None], c),
                "dist_xz by mobius_add": 2
                / c.sqrt()
                * (c.sqrt() * poincare.mobius_add(-x[:, None], z[None], c).norm(dim=-1)).clamp(max=1 - 1e-7).atanh(),
                "ext_xy": poincare.exterior_angle(x, y, c),
                "ext_xz": poincare.exterior_angle(x, z, c),
                "aper_x": poincare.half_aperture(x, c),
                "ball_x": poincare.exp_map0(tangent, c),
                "ball_x isometric": poincare.exp_map0(riemannian, c, "isometric"),
                "tangent_poincare_lambda2": poincare.log_map0(x, c),
                "tangent_riemannian": poincare.log_map0(x, c, "isometric"),
                "entropy_abs": entropy(x, "abs"),
                "entropy_absnorm": entropy(x, "normalised"),
                "entropy_softmax": entropy(x, "softmax"),
            }
            for name, ours in results.items():
                if (key := name.split(" ")[0]) not in entry and key.startswith("entropy"):
                    continue  # the table has entropies at one curvature only
                error = largest_error(ours.double().numpy(), entry[key])
                rows.append({"name": f"c{index}/{name}", "dtype": str(dtype), "error": error, "tolerance": tolerance})
    return rows


def largest_error(ours: np.ndarray, expected: np.ndarray) -> float:
    """Largest error divided by max(1, |value|); infinite for another shape or non-finite numbers."""
    if ours.shape != expected.shape:
        return math.inf
    error = float((np.abs(ours - expected) / np.maximum(np.abs(expected), 1)).max())
    return error if math.isfinite(error) else math.inf
