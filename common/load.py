"""Frozen dataclasses filled from a YAML that holds what differs, and `key.sub=value` on top.

Unknown keys and wrong types stop at once, with the file or argument that holds them. What a configuration refuses of its own values
is a UserError of its `__post_init__` that begins with the field's name; `merge` puts the keys of the groups around it in front.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from omegaconf import Container, DictConfig, ListConfig, OmegaConf, ValueNode
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from common.errors import UserError, prefixed

Layer = tuple[DictConfig, str]
"""Values, and where they stand: a file's name or an argument."""


def read_layers(path: str | None, overrides: Sequence[str], short: Mapping[str, str]) -> list[Layer]:
    """The YAML at `path`, then the `key=value` arguments; names of `short` become the keys they stand for."""
    layers = [(_load_yaml(path, short), path)] if path else []
    for item in overrides:
        key, given, value = item.partition("=")
        if not given or not key:
            raise UserError(f"{item!r} is neither a YAML file nor key=value; see --help for the keys")
        if not value:
            raise UserError(f"{item} gives no value; write one, {key}=null for none, or {key}='\"\"' for an empty text")
        try:
            layers.append((_long_keys(OmegaConf.from_dotlist([item]), short), item))
        except YAMLError as error:
            raise UserError(f"{item} cannot be read: {' '.join(str(error).split())}") from None
    return layers


def merge(cls: type, layers: Sequence[Layer], kinds: Mapping[str, type] | None = None) -> Any:
    """A `cls` with its defaults, then the layers. `kinds` names fields that hold a subclass of what `cls` declares.

    Raises UserError naming the file or key and the mend.
    """
    merged: Any = OmegaConf.structured(cls)
    for name, kind in (kinds or {}).items():
        merged = OmegaConf.merge(merged, {name: OmegaConf.structured(kind)})
    for layer, source in layers:
        try:
            merged = OmegaConf.merge(merged, layer)
        except (OmegaConfBaseException, TypeError) as error:
            if form := _of_another_form(merged, layer):
                raise UserError(f"{source}: {form}; --help lists all keys") from None
            if not isinstance(error, OmegaConfBaseException):
                raise
            where = f"key {error.full_key}" if error.full_key else "a value stands where a group of keys belongs"
            raise UserError(f"{source}: {str(error).splitlines()[0]} ({where}; --help lists all keys)") from None
    return _build(merged, "")


def _of_another_form(node: DictConfig, layer: DictConfig, prefix: str = "") -> str:
    """Which key of `layer` holds no list where `node` holds one, or a list where it holds names with values."""
    for name in [name for name in map(str, node) if name in layer]:
        ours, theirs = node._get_node(name), layer._get_node(name)
        if isinstance(ours, DictConfig):
            if isinstance(theirs, ListConfig):
                return f"{prefix}{name} takes names with values, not a list"
            if isinstance(theirs, DictConfig) and (found := _of_another_form(ours, theirs, f"{prefix}{name}.")):
                return found
        elif isinstance(ours, Container):
            if isinstance(theirs, DictConfig):
                return f"{prefix}{name} takes a list, not names with values"
            if isinstance(theirs, ValueNode) and theirs._value() is not None:
                return f"{prefix}{name} takes a list; write [{theirs._value()}] for one"
    return ""


def _build(node: DictConfig, prefix: str) -> Any:
    """The dataclass of a group whose keys begin with `prefix`.

    Groups within are built first, each by itself: a configuration's messages begin with a field's name, and only here is known
    which key that is.
    """
    for name in map(str, node):
        child = node._get_node(name)
        if isinstance(child, DictConfig) and is_dataclass(OmegaConf.get_type(child)):
            _build(child, f"{prefix}{name}.")
    try:
        with prefixed(prefix):
            return OmegaConf.to_object(node)
    except OmegaConfBaseException as error:
        raise UserError(f"{str(error).splitlines()[0]} (key {error.full_key})") from None


def check_positive(config: object, *names: str) -> None:
    """For `__post_init__`: raise UserError for a field, or a number of one, that is not above 0 or not finite; None is not set."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, tuple):
            if not all(0 < number < math.inf for number in value):
                raise UserError(f"{name} is {list(value)}; give numbers above 0")
        elif value is not None and not 0 < value < math.inf:
            raise UserError(f"{name} is {value}; give a number above 0")


def check_range(config: object, *names: str, least: float, most: float = math.inf, below: float | None = None) -> None:
    """For `__post_init__`: raise UserError for a field outside [least, most], or not below `below`; None is not set."""
    end, limit = ("to below ", below) if below is not None else ("to ", most)
    for name in names:
        value = getattr(config, name)
        if value is not None and not (least <= value <= most and (below is None or value < below)):
            raise UserError(f"{name} is {value}; give {least} {'or more' if limit == math.inf else f'{end}{limit}'}")


def to_yaml(config: Any) -> str:
    """The resolved configuration, every key with its value."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def _load_yaml(path: str, short: Mapping[str, str]) -> DictConfig:
    if not os.path.isfile(path):
        raise UserError(f"config file {path!r} does not exist; jobs/ holds examples")
    try:
        loaded = OmegaConf.load(path)
    except (YAMLError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"config file {path!r} cannot be read: {error}") from None
    if not isinstance(loaded, DictConfig):
        raise UserError(f"config file {path!r} must hold `key: value` lines")
    return _long_keys(loaded, short)


def _long_keys(layer: DictConfig, short: Mapping[str, str]) -> DictConfig:
    """`layer` with the short names replaced by the keys they stand for."""
    for name, long in short.items():
        if name in layer:
            OmegaConf.update(layer, long, layer.pop(name), force_add=True)
    return layer
