"""JSON files that hold one object, such as the configuration of a model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypergrit_common.disk import atomic_write
from hypergrit_common.files import check_file


def read_object(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file.

    Raises OSError if the file cannot be opened, and ValueError that begins with its path if it does not hold an object.
    """
    check_file(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value


def write_object(values: Mapping[str, Any], path: Path) -> None:
    """Write an object to a JSON file atomically, keys in the given order.

    Raises TypeError for a value that JSON cannot represent.
    """
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


# The metrics file of a training run: JSON Lines, each row with its `step`.


def truncate(path: Path, step: int, required_field: str = "") -> None:
    """Remove the rows after `step`, the step of the checkpoint from which a run resumes; the run writes them again.

    Rows of `step` itself are kept; if `required_field` is given, only those that have it. The trainer sets it to remove
    the evaluation after the last step, which is repeated when a finished run is started again. Does nothing if the file
    does not exist.
    """
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # the process was killed while it wrote the last line
            break
        if row["step"] > step or (row["step"] == step and required_field and required_field not in row):
            break
        kept.append(line + "\n")
    with atomic_write(path) as draft:
        draft.write_text("".join(kept), encoding="utf-8")
