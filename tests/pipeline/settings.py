"""Settings whose constants have other values."""

import dataclasses
from typing import Any, TypeVar

Config = TypeVar("Config")


def with_constants(cls: type[Config], **values: Any) -> Config:
    """Return settings of a subclass of `cls`, in which the `values` that are no fields replace constants."""
    names = {item.name for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    constants = {name: value for name, value in values.items() if name not in names}
    assert all(hasattr(cls, name) for name in constants), f"{cls.__name__} has none of {sorted(constants)}"
    kind = type(cls.__name__, (cls,), constants)
    return kind(**{name: value for name, value in values.items() if name in names})
