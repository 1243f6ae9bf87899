"""Compare `trainer.geometry.lorentz` with a function table: `python -m tests.parity.lorentz FILE.npz`.

The bar, for each function and curvature, in float32 and float64: no further from the table's float64 than three times
the reference's own float32 error, plus 1e-6.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.geometry import lorentz, product

Table = dict[str, np.ndarray]


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


def worst(ours: Tensor, truth: np.ndarray) -> float:
    return float(np.abs(ours.detach().double().numpy() - truth).max())


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
            truth = table[f"f64/{name}"]
            reference = float(np.abs(table[f"f32/{name}"].astype(np.float64) - truth).max())
            bar = 3 * reference + 1e-6
            finite = bool(ours.isfinite().all())
            rows.append({
                "name": name, "dtype": str(dtype), "error": worst(ours, truth), "reference": reference, "bar": bar,
                "finite": finite,
            })  # fmt: skip
    return rows


def main(path: Path) -> int:
    with np.load(path) as table:
        json.loads(str(table["meta_json"]))
        rows = compare(table)
    failed = [row for row in rows if not row["error"] <= row["bar"] or not row["finite"]]
    for row in sorted(rows, key=lambda row: row["error"] / row["bar"], reverse=True)[:20]:
        print(
            f"{row['name']:26} {row['dtype'][6:]:8} error {row['error']:.2e}  reference's {row['reference']:.2e}  "
            f"bar {row['bar']:.2e}  {'FAIL' if row in failed else 'ok'}"
        )
    print(f"{len(rows) - len(failed)} of {len(rows)} within the bar")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
