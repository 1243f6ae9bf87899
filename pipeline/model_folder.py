"""The config.json of a model folder, and the calibrated threshold in it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.json_file import read_object


def read_model_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a model folder, {} if it has none. Raises UserError if the file is damaged."""
    try:
        return read_object(folder / "config.json")
    except (FileNotFoundError, NotADirectoryError):  # NotADirectoryError: `folder` is a weight file
        return {}
    except ValueError as error:
        raise UserError(str(error)) from error


def calibrated_threshold(
    config: dict[str, Any], keys: Sequence[tuple[str, str]], *, otherwise: float, most: float, model: str
) -> float:
    """The calibrated threshold in the config.json of a model, or `otherwise` if it has none.

    The first of `keys` (group, key) that is set counts. Raises UserError, naming the `model`, if its value is not a
    number from 0 to `most`.
    """
    groups = [(config.get(group), key) for group, key in keys]
    found = [group[key] for group, key in groups if isinstance(group, dict) and group.get(key) is not None]
    value = found[0] if found else otherwise
    if not isinstance(value, int | float) or not 0 <= value <= most:
        raise UserError(
            f"the config.json of {model} has the score threshold {value!r}; change it to a number from 0 to {most:g}"
        )
    return float(value)
