"""Checks of YAML from the user that OmegaConf does not make: its size, its depth and interpolations.

OmegaConf itself limits the values that aliases (*name) repeat, and builds no objects of Python.
"""

from typing import Final

import yaml

MAX_CHARS: Final = 1_000_000
MAX_DEPTH: Final = 50
INTERPOLATION: Final = "${"
LITERAL: Final = "interpolations are not resolved, since they would copy secrets of the environment; write the value"


def check_yaml(text: str) -> None:
    """Check a YAML document without building its values.

    Raises ValueError with the line if it exceeds a limit or has an interpolation, yaml.YAMLError if it is not valid.
    """
    if len(text) > MAX_CHARS:
        raise ValueError(f"it has {len(text)} characters; a configuration has at most {MAX_CHARS}")
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"line {line}: values are nested more than {MAX_DEPTH} deep; remove the inner ones")
        if isinstance(event, yaml.ScalarEvent) and INTERPOLATION in event.value:
            raise ValueError(f"line {line}: {LITERAL}")  # the value may be a secret
