"""Check that the settings of a training run do not change when it resumes."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from common.config import split_runtime, to_yaml
from common.disk import atomic_write
from common.errors import UserError
from pipeline.ground.glip.training.config import KEYS, GlipTrainConfig

SETTINGS_FILE: Final = "training.yaml"


def check_settings(path: Path, config: GlipTrainConfig, *, resumes: bool) -> None:
    """Save the settings in `path`; if the run resumes, compare them with the saved ones first.

    Settings marked with `runtime` may differ. Settings saved by version 0.1 are translated. Raises UserError naming the
    first other setting that differs.
    """
    if resumes and path.exists():
        fixed, _ = split_runtime(config)
        current = json.loads(json.dumps(fixed))  # lists for tuples, as in YAML
        difference = next(_differences(_read_settings(path), current), None)
        if difference:
            key, old, new = difference
            raise UserError(
                f"{path.parent} holds a run with other settings: {key} was {old!r} and is now {new!r}; "
                "give another output, or delete this one"
            )
    with atomic_write(path) as draft:
        draft.write_text(to_yaml(config), encoding="utf-8")


def _read_settings(path: Path) -> dict[str, Any]:
    """Read saved settings and translate them to the current keys. Raises UserError if the file is damaged."""
    try:
        saved = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {error}; give another output, or delete this one") from error
    if not isinstance(saved, dict):
        raise UserError(f"{path} is damaged: it holds no settings; give another output, or delete this one")
    return KEYS.translate(saved)


def _differences(
    saved: Mapping[str, Any], current: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (key, saved value, current value) for each setting of `current` that differs."""
    for name, value in current.items():
        old = saved.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            yield from _differences(old, value, f"{prefix}{name}.")
        elif old != value:
            yield f"{prefix}{name}", old, value
