"""Configuration: frozen dataclasses, filled from YAML files and `key.sub=value` arguments.

Unknown keys and wrong types are errors that name the file or argument. A configuration class checks its own values in
`__post_init__` and raises a UserError that begins with the field name; `merge` prepends the names of the enclosing
groups.

Fields marked with `runtime` affect how a result is computed, not what it is: devices, batch sizes, timeouts. They are
recorded with the results and may change when a job or a training run resumes.
"""

import dataclasses
import difflib
import io
import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_type_hints

import yaml
from omegaconf import Container, DictConfig, ListConfig, OmegaConf, StringNode, ValueNode
from omegaconf.errors import OmegaConfBaseException

from hypergrit_common.errors import UserError, prefixed
from hypergrit_common.files import check_file
from hypergrit_common.lazy import is_plugin
from hypergrit_common.removed import REMOVED
from hypergrit_common.text import one_line, redact
from hypergrit_common.urls import clean, text_without_queries

# Checks of YAML from the user that OmegaConf does not make: its size, its depth and interpolations.
#
# OmegaConf itself limits the values that aliases (*name) repeat, and builds no objects of Python.

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


Layer = tuple[DictConfig, str]
"""Values with their source: the file or argument that sets them."""

RESOLVED_FILE = "config.yaml"
"""Name of the file in which a job or a training run saves its resolved configuration."""

T = TypeVar("T")


def runtime(default: T | None = None, *, factory: Callable[[], T] | None = None) -> T:
    """Declare a field, `runtime("auto")`, or a group, `runtime(factory=RayConfig)`, that may change on resume."""
    if factory is not None:
        group: T = dataclasses.field(default_factory=factory, metadata={"runtime": True})
        return group
    return dataclasses.field(default=default, metadata={"runtime": True})  # type: ignore[return-value]


def secret(*, factory: Callable[[], T]) -> T:
    """Declare a `runtime` field whose value is never saved, recorded or printed: passwords, tokens."""
    metadata = {"runtime": True, "secret": True}
    value: T = dataclasses.field(default_factory=factory, metadata=metadata, repr=False)
    return value


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The key names of one command.

    `short` maps short names to full keys. `secret` are the full keys of `secret` fields, whose values no message repeats,
    `plugins` those that may name classes of the user (hypergrit_common.lazy), `removed` those of earlier versions with
    their defaults.
    """

    short: Mapping[str, str] = dataclasses.field(default_factory=dict)
    secret: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    removed: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def is_secret(self, key: str) -> bool:
        """Return True for the key of a secret, also misspelt, of one within it, and of its group, whose value holds it."""
        is_misspelt = bool(difflib.get_close_matches(key, self.secret, n=1, cutoff=0.8))
        return is_misspelt or any(
            f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in self.secret
        )


def _select(layer: DictConfig, key: str) -> Any:
    node: Any = layer
    for name in key.split("."):
        node = node._get_node(name) if isinstance(node, DictConfig) and name in node else None
    try:
        return list(node) if isinstance(node, ListConfig) else node._value() if isinstance(node, ValueNode) else node
    except OmegaConfBaseException as error:
        raise UserError(f"key {key}: {str(error).splitlines()[0]}; give a list of values") from error


def last_value(layers: Sequence[Layer], key: str) -> Any:
    """Return the value of a full key in the last layer that sets it; None if none does."""
    found = (value for layer, _ in reversed(layers) if (value := _select(layer, key)) is not None)
    return next(found, None)


def check_plugins(saved: Sequence[Layer], given: Sequence[Layer], keys: Keys) -> None:
    """Raise UserError if a `saved` configuration names a class of the user that no layer `given` by the user names.

    An output may come from anyone, and to import a class runs the code of its module.
    """
    named = {key: set(_plugins(given, key)) for key in keys.plugins}
    for layer in saved:
        for key in keys.plugins:
            for name in _plugins([layer], key):
                if name not in named[key]:
                    raise UserError(
                        f"{layer[1]} names code of its own, {key}={name}, which is not loaded from there; if you "
                        f"trust it, give {key} with {name} on the command line too"
                    )


def _plugins(layers: Sequence[Layer], key: str) -> Iterator[str]:
    for layer, _ in layers:
        value = _select(layer, key)
        yield from filter(is_plugin, value if isinstance(value, list) else [value])


def saved_layers(layers: Sequence[Layer], arguments: Sequence[str]) -> tuple[list[Layer], list[Layer]]:
    """Divide the layers of a command line into those of files that a job or a training run has saved, and others."""
    files = {item for item in arguments if "=" not in item and Path(item).name == RESOLVED_FILE}
    return [layer for layer in layers if layer[1] in files], [layer for layer in layers if layer[1] not in files]


def read_layers(arguments: Sequence[str], keys: Keys) -> list[Layer]:
    """Read the layers of a command line: YAML files in the order given, then the `key=value` arguments.

    Later layers override earlier ones. Raises UserError naming the file or argument that cannot be read.
    """
    for item, after in zip(arguments, [*arguments[1:], ""], strict=False):
        if item.startswith("-"):
            key, _, value = item.lstrip("-").partition("=")
            value = value or ("" if "=" in after or after.startswith("-") else after) or "VALUE"
            example = f"{key.replace('-', '_')}={'VALUE' if keys.is_secret(key) else value}"
            raise UserError(f"--{key} is no option: settings have no dashes; write {example}")
    files = [item for item in arguments if "=" not in item]
    layers = [make_layer(_load_yaml(path), path, keys) for path in files]
    for item in arguments:
        key, separator, value = item.partition("=")
        if not separator:
            continue
        if not key:
            raise UserError(f"{item!r} is neither a YAML file nor key=value; see --help for the keys")
        if not value:
            raise UserError(
                f"{item} has no value; give one, {key}='\"\"' for an empty text, or {key}=null if it may have none"
            )
        if INTERPOLATION in key:
            raise UserError(f"{item}: {LITERAL}")
        if "\n" in value and value.lstrip()[0] not in "{['\"":  # YAML would write a space in its place
            raise UserError(f"the value of {key}= has a line break; write it in quotes")
        try:
            check_yaml(value)
            layer = OmegaConf.from_dotlist([item])
        except Exception as error:  # PyYAML and OmegaConf raise many types for values that they cannot convert
            if keys.is_secret(key):
                raise UserError(f"the value of {key}= cannot be read; see --help for its form") from None
            if value[0] in "[{" or not isinstance(error, yaml.MarkedYAMLError) or INTERPOLATION in value:
                raise UserError(f"{item:.200} cannot be read: {one_line(error)}") from None
            layer = OmegaConf.create({})
            OmegaConf.update(layer, key, value, force_add=True)  # a text, such as a condition
        layers.append(make_layer(layer, f"{key}=..." if keys.is_secret(key) else item, keys))
    return layers


def make_layer(values: Any, source: str, keys: Keys) -> Layer:
    """Return a layer of a mapping, by the full keys, without the settings that `keys` has as removed.

    Raises UserError like `without_removed`.
    """
    layer = OmegaConf.create(values)
    for name in keys.short.keys() & layer.keys():
        OmegaConf.update(layer, keys.short[name], layer.pop(name), force_add=True)
    plain: Any = OmegaConf.to_container(layer)
    return OmegaConf.create(without_removed(plain, keys.removed, source)), source


def without_removed(
    values: Mapping[str, Any], removed: Mapping[str, Any], source: str, prefix: str = ""
) -> dict[str, Any]:
    """Return nested settings without the keys of `removed`. Raises UserError if one has another value than there."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key, kept = f"{prefix}{name}", value
        if key in removed:
            if value != removed[key]:
                raise UserError(f"{source}: {key} was {REMOVED}; leave it out, or use that version")
            continue
        if isinstance(value, dict):
            kept = without_removed(value, removed, source, f"{key}.")
        if kept or not value:  # else a group that had no other settings
            found[name] = kept
    return found


def command_line(command: str, arguments: Sequence[str], keys: Keys) -> str:
    """Return a command as a line for a shell, without the values of secret keys and the queries of URLs.

    In a path of a store, a question mark is a wildcard, and stays.
    """
    known = (text_without_queries(item) if "http" in item.lower() else item for item in arguments)
    shown = (f"{key}=***" if keys.is_secret(key := item.partition("=")[0].strip()) else item for item in known)
    return redact(shlex.join([*shlex.split(command), *shown]))


def merge(cls: type, layers: Sequence[Layer], kinds: Mapping[str, type] | None = None) -> Any:
    """Build a `cls` from its defaults, overridden by each layer in turn.

    `kinds` maps a field name to a subclass that is used instead of the declared type of the field. Raises UserError
    naming the file or argument, the key and the fix.
    """
    merged: Any = OmegaConf.structured(cls)
    for name, kind in (kinds or {}).items():
        merged = OmegaConf.merge(merged, {name: OmegaConf.structured(kind)})
    for layer, source in layers:
        try:
            merged = OmegaConf.merge(merged, _as_written(layer, source, merged))
        except (OmegaConfBaseException, TypeError, OverflowError) as error:
            if problem := _form_difference(merged, layer):
                raise UserError(f"{source}: {problem}; --help all lists all keys") from None
            if isinstance(error, OverflowError):
                raise UserError(f"{source}: a number is too large ({error}); --help lists the ranges") from None
            if not isinstance(error, OmegaConfBaseException):
                raise
            if key := next((name for name in secret_keys(cls) if _is_within(str(error.full_key), name)), ""):
                raise UserError(f"{source}: the value of {key} has another form than in --help") from None
            where = f"key {error.full_key}" if error.full_key else "a value is given where a group of keys is expected"
            problem = str(error).splitlines()[0]
            if name := "" if "Did you mean" in problem else _name_by_initials(merged, str(error.full_key)):
                problem += f". Did you mean: '{name}'?"
            raise UserError(f"{source}: {problem} ({where}; --help all lists all keys)") from None
    return _build(merged, "")


def _as_written(layer: DictConfig, source: str, merged: DictConfig) -> DictConfig:
    """Return the layer of an argument with its value as it was written if the key holds a text.

    YAML reads 007 as a number, no as False, and what follows ` #` as a comment.
    """
    names, node, target = list[str](), cast(Any, layer), cast(Any, merged)
    while isinstance(node, DictConfig) and len(node) == 1 and isinstance(target, DictConfig):
        names += map(str, node)
        node, target = node._get_node(names[-1]), target._get_node(names[-1], validate_access=False)
    value = source.partition("=")[2].strip()
    is_plain = isinstance(node, ValueNode) and node._value() is not None and value[:1] not in ("", "'", '"', "{", "[")
    if not is_plain or not isinstance(target, StringNode) or value == "...":  # `...`: a secret
        return layer
    return OmegaConf.create(reduce(lambda inner, name: {name: inner}, reversed(names), cast(Any, value)))


def merge_some(cls: type, layers: Sequence[Layer]) -> Any:
    """Build a `cls` like `merge` from the settings in `layers` that it has; the others are left out."""
    names = {item.name for item in dataclasses.fields(cls)}
    return merge(cls, [(OmegaConf.masked_copy(layer, [*names & layer.keys()]), source) for layer, source in layers])


def _name_by_initials(node: Any, key: str) -> str:
    """Return the name of a setting that abbreviates an unknown `key`, such as lr of learning_rate; empty without one."""
    *groups, wrong = key.split(".")
    initials = "".join(word[0] for word in wrong.split("_") if word)
    parent = node
    for name in groups:
        parent = parent._get_node(name, validate_access=False) if isinstance(parent, DictConfig) else None
    if not isinstance(parent, DictConfig):
        return ""
    inner = [(f"{name!s}.", child) for name in parent if isinstance(child := parent._get_node(name), DictConfig)]
    return next((f"{prefix}{initials}" for prefix, group in [("", parent), *inner] if initials in group), "")


def from_plain(cls: type, values: Mapping[str, Any], source: str) -> Any:
    """Build a `cls` from the plain values of a file, such as a JSON object.

    Raises UserError, beginning with `source`, for an unknown key, a value of the wrong type, or an interpolation.
    """
    with prefixed(f"{source}: "):
        try:
            text = json.dumps(values)
            if INTERPOLATION in text:
                raise UserError(LITERAL)
            merged = OmegaConf.merge(OmegaConf.structured(cls), OmegaConf.create(json.loads(text)))
        except (OmegaConfBaseException, ValueError, TypeError, RecursionError, OverflowError) as error:
            key = f" (key {error.full_key})" if isinstance(error, OmegaConfBaseException) and error.full_key else ""
            raise UserError(f"{str(error).splitlines()[0]}{key}") from error
        assert isinstance(merged, DictConfig)
        return _build(merged, "")


def _form_difference(node: DictConfig, layer: DictConfig, prefix: str = "") -> str:
    """Describe the first key with a list in place of a mapping or vice versa; return "" if there is none."""
    for name in [name for name in map(str, node) if name in layer]:
        ours, theirs = node._get_node(name), layer._get_node(name)
        if isinstance(ours, DictConfig):
            if isinstance(theirs, ListConfig):
                return f"{prefix}{name} must be a mapping {{name: value}}, not a list"
            if isinstance(theirs, DictConfig) and (found := _form_difference(ours, theirs, f"{prefix}{name}.")):
                return found
        elif isinstance(ours, Container):
            if isinstance(theirs, DictConfig):
                return f"{prefix}{name} must be a list, not a mapping"
            if isinstance(theirs, ValueNode) and theirs._value() is not None:
                return f"{prefix}{name} must be a list; write [{theirs._value()}] for one value"
    return ""


def _build(node: DictConfig, prefix: str) -> Any:
    """Build the dataclass of a group whose keys begin with `prefix`.

    Nested groups are first built separately, so that the prefix of the group can be prepended to their error messages,
    which begin with a field name.
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


def _is_within(key: str, group: str) -> bool:
    return key == group or key.startswith((f"{group}.", f"{group}["))


def secret_keys(cls: type, prefix: str = "") -> Iterator[str]:
    """Yield the keys of `cls` that are marked with `secret`."""
    hints = get_type_hints(cls)
    for item in dataclasses.fields(cls):
        if item.metadata.get("secret"):
            yield prefix + item.name
        elif is_dataclass(kind := hints[item.name]) and isinstance(kind, type):
            yield from secret_keys(kind, f"{prefix}{item.name}.")


def runtime_keys(cls: type, kinds: Mapping[str, type] | None = None, prefix: str = "") -> set[str]:
    """Return the keys and groups of `cls` that are marked with `runtime`; `kinds` as in `merge`."""
    found: set[str] = set()
    hints = get_type_hints(cls)
    for item in dataclasses.fields(cls):
        kind = (kinds or {}).get(item.name, hints[item.name])
        if item.metadata.get("runtime"):
            found.add(prefix + item.name)
        elif is_dataclass(kind) and isinstance(kind, type):
            found |= runtime_keys(kind, prefix=f"{prefix}{item.name}.")
    return found


def default_settings(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return the defaults of the settings of a configuration by full key, as JSON gives them back."""
    found: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        key, value = f"{prefix}{item.name}", getattr(config, item.name)
        if is_dataclass(value):
            found |= default_settings(value, f"{key}.")
        elif item.default_factory is not dataclasses.MISSING:
            found[key] = item.default_factory()
        elif item.default is not dataclasses.MISSING:
            found[key] = item.default
    return flatten(found)


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by full key, as JSON gives them back."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    plain: dict[str, Any] = json.loads(json.dumps(flat))
    return plain


def split_runtime(config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the values of a configuration into nested dictionaries: (all but `runtime` fields, `runtime` fields).

    Without `secret` fields.
    """
    fixed: dict[str, Any] = {}
    free: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if item.metadata.get("secret"):
            continue
        if item.metadata.get("runtime"):
            free[item.name] = dataclasses.asdict(value) if is_dataclass(value) else value  # type: ignore[arg-type]
        elif is_dataclass(value):
            fixed[item.name], inner = split_runtime(value)
            free |= {item.name: inner} if inner else {}
        else:
            fixed[item.name] = value
    return fixed, free


def check_positive(config: object, *names: str) -> None:
    """Raise UserError unless each field is above 0 and finite. For `__post_init__`; accepts None.

    The items of a tuple are checked one by one.
    """
    for name in names:
        value = getattr(config, name)
        if isinstance(value, tuple):
            if not all(0 < number < math.inf for number in value):
                raise UserError(f"{name} is {list(value)}; give numbers above 0")
        elif value is not None and not 0 < value < math.inf:
            raise UserError(f"{name} is {value}; give a number above 0")


def check_range(config: object, *names: str, least: float, most: float = math.inf, below: float | None = None) -> None:
    """Raise UserError unless each field is in [least, most], or [least, below). For `__post_init__`; accepts None."""
    end, limit = ("to below ", below) if below is not None else ("to ", most)
    for name in names:
        value = getattr(config, name)
        if value is not None and not (least <= value <= most and (below is None or value < below)):
            raise UserError(f"{name} is {value}; give {least} {'or more' if limit == math.inf else f'{end}{limit}'}")


def to_yaml(config: Any) -> str:
    """Return the resolved configuration as YAML: every key with its value, URLs without user names and passwords.

    Keys of `secret` fields are left out.
    """
    values: Any = OmegaConf.to_container(OmegaConf.structured(config))
    for key in secret_keys(type(config)):
        *groups, name = key.split(".")
        reduce(lambda group, name: group[name], groups, values).pop(name)
    return OmegaConf.to_yaml(OmegaConf.create(clean(values, strip_query=False)))


def _load_yaml(path: str) -> DictConfig:
    try:
        check_file(path)
        text = Path(path).read_text(encoding="utf-8")
        check_yaml(text)
        loaded = OmegaConf.load(io.StringIO(text))
    except FileNotFoundError:
        raise UserError(f"config file {path!r} does not exist; jobs/ holds examples") from None
    except Exception as error:  # PyYAML and OmegaConf raise many types for values that they cannot convert
        raise UserError(f"config file {path!r} cannot be read: {_problem(error)}") from None
    if not isinstance(loaded, DictConfig):
        raise UserError(f"config file {path!r} must hold `key: value` lines")
    return loaded


def _problem(error: Exception) -> str:
    """Describe an error; for YAML without the line of the file that its message quotes, which may hold a secret."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        return f"{error.problem}{line}"
    return one_line(error)
