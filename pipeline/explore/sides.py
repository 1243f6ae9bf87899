"""The size of boxes as one number, so that a threshold can be applied without the corners."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

NO_CROP: Final = -1
"""The side of a box whose crop has no pixels: it is removed with every threshold."""
Floats = npt.NDArray[np.float64]


def box_sides(corners: Mapping[str, Floats], width: npt.NDArray[np.int32], height: npt.NDArray[np.int32], rule: str
              ) -> npt.NDArray[np.int32]:  # fmt: skip
    """Return the largest `score.min_side_px` with which each box passes the filter by size, as `measure_box` applies it.

    `corners` are fractions of `width` and `height`, those of the stored image in pixels; `rule` is `score.size_rule`.
    """
    x = [corners[name] * width for name in ("x_min", "x_max")]
    y = [corners[name] * height for name in ("y_min", "y_max")]
    columns, rows = np.trunc(x[1]) - np.trunc(x[0]), np.trunc(y[1]) - np.trunc(y[0])
    box_width = (corners["x_max"] - corners["x_min"]) * width
    box_height = (corners["y_max"] - corners["y_min"]) * height
    match rule:
        case "area":  # area >= side ** 2
            side = floor_root(box_width * box_height)
        case "side":
            side = np.floor(np.minimum(box_width, box_height))
        case _:  # released: columns * rows > side ** 2, both integers
            side = floor_root(columns * rows - 1)
    return np.where((columns > 0) & (rows > 0), side, NO_CROP).astype(np.int32)


def floor_root(values: Floats) -> Floats:
    """Return the largest integer whose square is at most the value, exactly; -1 for negative values."""
    root = np.floor(np.sqrt(np.maximum(values, 0.0)))
    root -= root * root > values
    root += (root + 1) * (root + 1) <= values
    return np.where(values < 0, -1.0, root)
