"""Files of points in the Poincaré disk, which a trained model made (`schemas/disk.py`)."""

import math
from pathlib import Path
from typing import Any

from hypergrit_common.errors import UserError
from hypergrit_common.json_file import read_object
from schemas.disk import KINDS


def read_disk(path: str) -> dict[str, Any]:
    """The fields of a file that the page shows. Raises UserError for one that is missing or malformed."""
    try:
        found = read_object(Path(path))
        names = {name: str(found[name]) for name in ("model", "projection")}
        return names | {"points": [check_point(*point) for point in found["points"]]}
    except (OSError, ValueError, TypeError, LookupError) as error:
        command = "python -m trainer.analyses.disk MODEL shards=OUT/train output=FILE.json"
        raise UserError(f"disk: {path} has no points of a disk: {error}; write it with {command}") from error


def check_point(key: str, kind: str, text: str, x: float, y: float) -> list[Any]:
    """The point. Raises ValueError or TypeError for one outside the disk, or of another kind."""
    if kind not in KINDS or not math.hypot(x, y) <= 1:
        raise ValueError(f"the {str(kind)[:20]} of row {str(key)[:20]} at ({x}, {y})")
    return [str(key), kind, str(text), x, y]
