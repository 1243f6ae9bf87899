"""Recorded numbers, and the report of a comparison with them: the worst error of each group, beside its tolerance."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

DATA = Path(__file__).parent / "data"


def read(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays of a file of recorded numbers by name, and the values of its `meta_json`."""
    with np.load(DATA / f"{name}.npz") as file:
        table = {key: file[key] for key in file.files}
    return table, json.loads(str(table.get("meta_json", "{}")))


class Report:
    """Worst error of each group, its tolerance (the largest error that passes), and the entry with the worst error."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[float, float, str]] = {}

    def add(self, group: str, tolerance: float, ours: Any, theirs: Any, floor: float = 1e-30, where: str = "") -> None:
        """Add the largest difference of two arrays, divided by max(`floor`, largest |value| of `theirs`).

        Arrays of different shapes and differences that are not finite have an infinite error.
        """
        a, b = (np.asarray(v.detach() if isinstance(v, Tensor) else v, np.float64) for v in (ours, theirs))
        if a.shape != b.shape:
            error = math.inf
        else:
            # Relative to the array and not to each entry, since entries may be arbitrarily close to 0.
            scale = max(float(np.abs(b).max(initial=0)), floor)
            error = float(np.abs(a - b).max(initial=0)) / scale
        error = error if math.isfinite(error) else math.inf
        if group not in self.rows or error > self.rows[group][0]:
            self.rows[group] = (error, tolerance, where)

    def check(self, group: str, holds: bool, where: str = "") -> None:
        """Add a condition, which fails its group if it is False."""
        self.add(group, 0.5, 0.0 if holds else math.inf, 0.0, floor=1.0, where=where)

    def failed(self) -> list[str]:
        """Groups whose error exceeds the tolerance."""
        return [group for group, (error, tolerance, _) in self.rows.items() if not error <= tolerance]
