"""Compare the Poincare ball with the Lorentz model through the isometry: `python -m tests.parity.poincare FILE.npz`.

In float64 everything must agree to 1e-6; the table's own eps stands in its apertures and self-distances. In float32
the points themselves are rounded, so what is compared there is relative to how near the rim they lie.
"""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.parity.cases import open_cases
from trainer.geometry import poincare
from trainer.losses.functional import entropy

INPUTS = ("ball_x", "ball_y", "ball_z", "tangent_poincare_lambda2", "tangent_riemannian")
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-4}


def compare(table: Any) -> list[dict[str, Any]]:
    """One row for each quantity, curvature and precision, with its worst error relative to max(1, |value|)."""
    rows = []
    for index, curvature in enumerate(json.loads(str(table["meta_json"]))["curv"]):
        entry = {key.split("/")[1]: table[key] for key in table.files if key.startswith(f"c{index}/")}
        for dtype, tolerance in TOLERANCE.items():
            c = torch.tensor(curvature, dtype=dtype)
            x, y, z, tangent, riemannian = (torch.from_numpy(entry[name]).to(dtype) for name in INPUTS)
            results = {
                "dist_xz": poincare.pairwise_distance(x, z, c),
                "dist_xz one by one": poincare.distance(x[:, None], z[None], c),
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
                    continue  # the table has it at one curvature alone
                error = worst(ours.double().numpy(), entry[key]) if key in entry else math.inf
                rows.append({"name": f"c{index}/{name}", "dtype": str(dtype), "error": error, "bar": tolerance})
    return rows


def worst(ours: np.ndarray, truth: np.ndarray) -> float:
    """Infinite for another shape, and for what is not finite."""
    if ours.shape != truth.shape:
        return math.inf
    error = float((np.abs(ours - truth) / np.maximum(np.abs(truth), 1)).max())
    return error if math.isfinite(error) else math.inf


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        sys.exit("usage: python -m tests.parity.poincare FILE.npz")
    table, _ = open_cases(
        Path(arguments[0]), "table of the Poincare ball", (f"c0/{name}" for name in INPUTS), ("curv",)
    )
    rows = compare(table)
    failed = [row for row in rows if not row["error"] <= row["bar"]]
    for row in sorted(rows, key=lambda row: row["error"] / row["bar"], reverse=True)[:20]:
        verdict = "FAIL" if row in failed else "ok"
        print(f"{row['name']:30} {row['dtype'][6:]:8} error {row['error']:.2e}  bar {row['bar']:.0e}  {verdict}")
    print(f"{len(rows) - len(failed)} of {len(rows)} within the bar")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
