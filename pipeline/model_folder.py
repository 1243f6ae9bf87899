"""The config.json of a model folder, and the threshold that it may hold."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.json_file import read_object


def read_config(folder: Path) -> dict[str, Any]:
    """A model folder's config.json, {} without one."""
    try:
        return read_object(folder / "config.json")
    except (FileNotFoundError, NotADirectoryError):  # a weight file has none
        return {}
    except ValueError as error:
        raise UserError(str(error)) from error


def calibrated_threshold(
    config: dict[str, Any], places: Sequence[tuple[str, str]], *, otherwise: float, most: float, model: str
) -> float:
    """The model's own calibration: what its config.json has at the first of `places` (group, key), `otherwise` without one.

    Raises UserError if that is no number from 0 to `most`.
    """
    groups = [(config.get(group), key) for group, key in places]
    found = [group[key] for group, key in groups if isinstance(group, dict) and group.get(key) is not None]
    value = found[0] if found else otherwise
    if not isinstance(value, int | float) or not 0 <= value <= most:
        raise UserError(f"the config.json of {model} has {value!r} as score threshold; from 0 to {most:g} it must be")
    return float(value)
