"""Name the differences between a job and the one that wrote the shards of its output."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from schemas.manifest import Provenance

MISSING: Final = "none"
SHOWN: Final = 12
"""Maximum number of differences in a message."""
PLAN_SETTINGS: Final = ("limit", "rows_per_shard")
"""Settings that decide which rows a shard holds. Shards that hold the same rows are kept when they change."""
FORMATS: Final = "write.formats"
"""Setting that decides which files a shard has; a shard that has more is kept."""


def setting_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Describe the settings that differ, by key; those of the formats are found per shard."""
    return {
        key: f"{key}: {show(old, key)} -> {show(new, key)}"
        for key in sorted(old.keys() | new.keys())
        if key != FORMATS and show(old, key) != show(new, key)
    }


def provenance_differences(old: Provenance, new: Provenance) -> Iterator[str]:
    """Describe versions, models and thresholds that differ."""
    for name, label in (("hypergrit", "HyperGRIT"), ("schema", "schemas")):
        if old.get(name) != new.get(name):
            yield f"{label}: {show(old, name)} -> {show(new, name)}"
    for group, label in (("packages", "package "), ("thresholds", "threshold ")):
        before, after = _mapping(old.get(group)), _mapping(new.get(group))
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                yield f"{label}{name}: {show(before, name)} -> {show(after, name)}"
    for role, model in _mapping(new.get("models")).items():
        before = _mapping(_mapping(old.get("models")).get(role))
        if before != model:
            yield f"{role}: {describe_model(before)} -> {describe_model(model)}"


def describe_model(model: Mapping[str, Any]) -> str:
    """Describe a model with the beginning of its hash, or with its version."""
    identity = f"sha256 {str(model['sha256'])[:12]}" if "sha256" in model else model.get("version")
    return f"{model.get('name', MISSING)}" + (f" ({identity})" if identity else "")


def show(values: Mapping[str, Any], key: str) -> str:
    """Format a value for a message; values of JSON and of Python look the same."""
    value = values.get(key)
    return MISSING if value is None else str(list(value) if isinstance(value, tuple) else value)


def join(differences: Iterable[str]) -> str:
    """Join differences to one line; the rest is counted."""
    listed = list(differences)
    more = f"; and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return "; ".join(listed[:SHOWN]) + more


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
