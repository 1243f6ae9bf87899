"""Compare `trainer.geometry.lorentz` with a function table: `python -m tests.parity.lorentz FILE.npz`.

The bar, for each function and curvature, in float32 and float64: no further from the table's float64 than three times
the reference's own float32 error, plus 1e-6. In float64 also no further, relative to max(1, |value|), than float64
itself goes: a bar that does not move with the numbers it holds us to.
"""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.parity.cases import open_cases
from trainer.geometry import lorentz, product

INPUTS = tuple(f"in/{name}" for name in ("v", "x", "y", "z", "outward", "opposite", "curv", "bx", "by", "bcurv"))
FLOAT64_BAR = 1e-5
# Where even float64 shows the eps of the reference, and its rounding at norms of 1e4.
FLOAT64_BARS = {"log_map0": 5e-3, "oxy_angle": 5e-3, "grad/oxy": 5e-3, "pairwise_dist_self": 1e-3}


def gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(x).sum(), x)
    return slope


def functions(inputs: dict[str, Tensor], c: Tensor) -> dict[str, Tensor]:
    """Every entry of the table at one curvature."""
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
    """The table of products: factors first, eps 1e-6."""
    x, y, c = inputs["bx"].movedim(1, 0), inputs["by"].movedim(1, 0), inputs["bcurv"][:, None]
    apart = lorentz.pairwise_distance(x, y, c, eps=1e-6)
    n = min(x.shape[1], y.shape[1])
    origin = torch.zeros_like(x[:, :1])
    return {
        "dist": apart,
        "inner": lorentz.pairwise_inner(x, y, c),
        "mean_l1": product.combine(apart, "l1"),
        "rms_l2": product.combine(apart, "l2"),
        "angle": lorentz.exterior_angle(x[:, :n], y[:, :n], c, eps=1e-6),
        "aperture": lorentz.half_aperture(x, c, eps=1e-6),
        "exp": lorentz.exp_map0(x, c, eps=1e-6).movedim(0, 1),
        "log": lorentz.log_map0(x, c, eps=1e-6).movedim(0, 1),
        "dist0": lorentz.distance(x, origin, c, eps=1e-6).mT[..., None],
    }


def worst(ours: Tensor, truth: np.ndarray, relative: bool = False) -> float:
    """Infinite for another shape, and for what is not finite."""
    values = ours.detach().double().numpy()
    if values.shape != truth.shape:
        return math.inf
    error = float((np.abs(values - truth) / (np.maximum(np.abs(truth), 1) if relative else 1)).max())
    return error if math.isfinite(error) else math.inf


def compare(table: Any) -> list[dict[str, Any]]:
    """One row for each function, curvature and precision: ours and the reference's worst errors, and the bar."""
    rows = []
    for dtype in (torch.float32, torch.float64):
        inputs = {key[3:]: torch.from_numpy(table[key]).to(dtype) for key in table.files if key.startswith("in/")}
        results = {
            f"c{index}/{name}": value
            for index, c in enumerate(inputs["curv"])
            for name, value in functions(inputs, c).items()
        }
        results |= {f"batch/{name}": value for name, value in batch_functions(inputs).items()}
        for name, ours in results.items():
            row = {"name": name, "dtype": str(dtype), "error": math.inf, "reference": math.nan, "bar": 0.0}
            rows.append(row)
            if not {f"f32/{name}", f"f64/{name}"} <= set(table.files):
                continue
            truth = table[f"f64/{name}"]
            reference = worst(torch.from_numpy(table[f"f32/{name}"]), truth)
            row |= {"error": worst(ours, truth), "reference": reference, "bar": 3 * reference + 1e-6}
            if dtype == torch.float64:
                function = name.partition("/")[2]
                own = next((bar for start, bar in FLOAT64_BARS.items() if function.startswith(start)), FLOAT64_BAR)
                relative = worst(ours, truth, relative=True)
                if relative / own > row["error"] / row["bar"]:
                    row |= {"error": relative, "bar": own}
    return rows


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        sys.exit("usage: python -m tests.parity.lorentz FILE.npz")
    table, _ = open_cases(Path(arguments[0]), "table of Lorentz functions", INPUTS, ())
    rows = compare(table)
    failed = [row for row in rows if not row["error"] <= row["bar"]]
    for row in sorted(rows, key=lambda row: row["error"] / row["bar"] if row["bar"] else math.inf, reverse=True)[:20]:
        print(
            f"{row['name']:26} {row['dtype'][6:]:8} error {row['error']:.2e}  reference's {row['reference']:.2e}  "
            f"bar {row['bar']:.2e}  {'FAIL' if row in failed else 'ok'}"
        )
    print(f"{len(rows) - len(failed)} of {len(rows)} within the bar")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
