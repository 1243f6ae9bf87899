"""Compare `trainer.geometry.lorentz` with a table of functions.

The table has the float32 and float64 results of the authors' released code ("the reference"), at several curvatures.
Each function is compared with the float64 result, in float32 and in float64. The tolerance is three times the error of
the reference in float32, plus 1e-6. In float64 the error relative to max(1, |value|) also has a fixed tolerance, which
does not depend on the reference's errors.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.geometry import lorentz, product

FLOAT64_TOLERANCE = 1e-5
# Functions in which the eps of the reference, or its rounding errors at norms of 1e4, are visible in float64.
FLOAT64_TOLERANCES = {"log_map0": 5e-3, "oxy_angle": 5e-3, "grad/oxy": 5e-3, "pairwise_dist_self": 1e-3}


def gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Gradient of the sum of `function(x)` by x."""
    x = x.clone().requires_grad_()
    (result,) = torch.autograd.grad(function(x).sum(), x)
    return result


def functions(inputs: dict[str, Tensor], c: Tensor) -> dict[str, Tensor]:
    """Results by name, for all entries of the table at the curvature `c`."""
    v, x, y, z = (inputs[name] for name in ("v", "x", "y", "z"))
    results = {
        "exp_map0": lorentz.exp_map0(v, c),
        "log_map0": lorentz.log_map0(x, c),
        "half_aperture": lorentz.half_aperture(x, c),
        "half_aperture_r0.05": lorentz.half_aperture(x, c, min_radius=0.05),
        "pairwise_inner": lorentz.pairwise_inner(x, z, c),
        "pairwise_dist": lorentz.pairwise_distance(x, z, c),
        "pairwise_dist_self": lorentz.pairwise_distance(x, x, c),
        "pairwise_dist_eps1e-6": lorentz.pairwise_distance(x, x, c, eps=1e-6),
        "grad/dist_xz": gradient(lambda x: lorentz.pairwise_distance(x, z, c), x),
        "grad/dist_xx": gradient(lambda p: lorentz.pairwise_distance(p, x, c), x),
        "grad/oxy": gradient(lambda x: lorentz.exterior_angle(x, y, c), x),
        "grad/aper": gradient(lambda x: lorentz.half_aperture(x, c), x),
    }
    for name, point in {"y": y, "z": z, "outward": inputs["outward"], "opposite": inputs["opposite"], "x": x}.items():
        results[f"oxy_angle_x_{name}"] = lorentz.exterior_angle(x, point, c)
    return results


def batch_functions(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Results by name, for the entries of products of factors, with eps 1e-6."""
    x, y, c = inputs["bx"].movedim(1, 0), inputs["by"].movedim(1, 0), inputs["bcurv"][:, None]
    distances = lorentz.pairwise_distance(x, y, c, eps=1e-6)
    n = min(x.shape[1], y.shape[1])
    origin = torch.zeros_like(x[:, :1])
    return {
        "dist": distances,
        "inner": lorentz.pairwise_inner(x, y, c),
        "mean_l1": product.combine(distances, "l1"),
        "rms_l2": product.combine(distances, "l2"),
        "angle": lorentz.exterior_angle(x[:, :n], y[:, :n], c, eps=1e-6),
        "aperture": lorentz.half_aperture(x, c, eps=1e-6),
        "exp": lorentz.exp_map0(x, c, eps=1e-6).movedim(0, 1),
        "log": lorentz.log_map0(x, c, eps=1e-6).movedim(0, 1),
        "dist0": lorentz.distance(x, origin, c, eps=1e-6).mT[..., None],
    }


def largest_error(ours: Tensor, expected: np.ndarray, relative: bool = False) -> float:
    """Largest error, if `relative` divided by max(1, |value|); infinite for another shape or non-finite numbers."""
    values = ours.detach().double().numpy()
    if values.shape != expected.shape:
        return math.inf
    error = float((np.abs(values - expected) / (np.maximum(np.abs(expected), 1) if relative else 1)).max())
    return error if math.isfinite(error) else math.inf


def compare(table: Any) -> list[dict[str, Any]]:
    """One row per function, curvature and precision: our largest error, that of the reference, and the tolerance."""
    rows = []
    for dtype in (torch.float32, torch.float64):
        inputs = {key[3:]: torch.from_numpy(table[key]).to(dtype) for key in table if key.startswith("in/")}
        results = {
            f"c{index}/{name}": value
            for index, c in enumerate(inputs["curv"])
            for name, value in functions(inputs, c).items()
        }
        results |= {f"batch/{name}": value for name, value in batch_functions(inputs).items()}
        for name, ours in results.items():
            expected = table[f"f64/{name}"]
            reference = largest_error(torch.from_numpy(table[f"f32/{name}"]), expected)
            row = {"name": name, "dtype": str(dtype), "error": largest_error(ours, expected), "reference": reference}
            row["tolerance"] = 3 * reference + 1e-6
            rows.append(row)
            if dtype == torch.float64:
                function = name.partition("/")[2]
                tolerances = (
                    tolerance for prefix, tolerance in FLOAT64_TOLERANCES.items() if function.startswith(prefix)
                )
                fixed_tolerance = next(tolerances, FLOAT64_TOLERANCE)
                relative = largest_error(ours, expected, relative=True)
                if relative / fixed_tolerance > row["error"] / row["tolerance"]:
                    row |= {"error": relative, "tolerance": fixed_tolerance}
    return rows
