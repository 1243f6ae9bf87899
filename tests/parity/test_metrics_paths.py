"""The comparison of paths with stored numbers: it passes on the file of the repository, and finds changed numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parity.metrics_paths import KEYS, check

FILE = Path(__file__).parent / "data" / "metrics.npz"


@pytest.fixture
def arrays() -> dict[str, Any]:
    with np.load(FILE) as file:
        return {name: file[name] for name in file.files if name.startswith(("trav/", "zs/curvs", "meta"))}


def test_all_paths_and_neighbours_equal_the_stored_ones(arrays: dict[str, Any]) -> None:
    rows = check(arrays)
    assert len(rows) == 8
    assert [row for row in rows if not row[1] <= row[2]] == []


@pytest.mark.parametrize("key", [key for key in KEYS if key.endswith(("interp", "nn", "masked", "as_coded", "paper"))])
def test_a_changed_array_is_found(arrays: dict[str, Any], key: str) -> None:
    changed = arrays[f"trav/{key}"].copy()
    changed.flat[3] = not changed.flat[3] if changed.dtype == bool else changed.flat[3] * 1.01 + 1
    failed = [name for name, error, tolerance in check(arrays | {f"trav/{key}": changed}) if not error <= tolerance]
    assert failed == [f"trav/{key}"]


def test_a_missing_array_is_an_infinite_error(arrays: dict[str, Any]) -> None:
    del arrays["trav/clip/root"]
    assert check(arrays) == [("trav/clip/root", float("inf"), 0.0)]
