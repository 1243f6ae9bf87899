"""Report of a comparison: the worst error of each group of numbers, beside its tolerance."""

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor


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

    def show(self) -> None:
        """Print one line per group."""
        for group, (error, tolerance, where) in sorted(self.rows.items()):
            verdict = "ok" if error <= tolerance else "FAIL"
            print(f"{group:34} worst {error:.1e}  tolerance {tolerance:.0e}  {verdict}  {where}")

    def conclude(self) -> int:
        """Print the report and its last line; return the exit code of the command."""
        self.show()
        failed = self.failed()
        print(f"{len(self.rows) - len(failed)} of {len(self.rows)} groups within the tolerance")
        return int(bool(failed))


def arguments_of(given: Sequence[str], text: str | None, sizes: Iterable[str] = ()) -> tuple[Path, tuple[str, ...]]:
    """Return the file of cases and the chosen `sizes` of a command; () means all, and a command without sizes has none."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("file", type=Path)
    if names := list(sizes):
        parser.add_argument("--sizes", nargs="+", choices=names, help="default: all sizes in the file")
    arguments = vars(parser.parse_args(given))
    return arguments["file"], tuple(arguments.get("sizes") or ())
