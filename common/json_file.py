"""JSON files that say what lies beside them: a model's configuration, a run's state."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.disk import atomic_write


def read_object(path: Path) -> dict[str, Any]:
    """The object in a file. Raises OSError if it cannot be opened, and ValueError that begins with its path if it holds none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value


def write_object(values: Mapping[str, Any], path: Path) -> None:
    """Whole or not at all, in the order given."""
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
