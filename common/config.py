"""Configuration: frozen dataclasses, filled from YAML files and `key.sub=value` arguments.

Unknown keys and wrong types are errors that name the file or argument. A configuration class checks its own values in
`__post_init__` and raises a UserError that begins with the field name; `merge` prepends the names of the enclosing
groups.

Fields marked with `runtime` affect how a result is computed, not what it is: devices, batch sizes, timeouts. They are
recorded with the results and may change when a job or a training run resumes.
"""

import dataclasses
import io
import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml
from omegaconf import Container, DictConfig, ListConfig, OmegaConf, ValueNode
from omegaconf.errors import OmegaConfBaseException

from common.errors import UserError, prefixed
from common.files import check_file
from common.text import one_line, redact
from common.urls import clean
from common.yaml_text import INTERPOLATION, LITERAL, check_yaml

Layer = tuple[DictConfig, str]
"""Values with their source: the file or argument that sets them."""

RESOLVED_FILE = "config.yaml"
"""Name of the file in which a job or a training run saves its resolved configuration."""
RESOLVED_FILES = (RESOLVED_FILE, "training.yaml")
"""Names of all files with a resolved configuration; the second is written by GLIP's training."""

T = TypeVar("T")


def runtime(default: T | None = None, *, factory: Callable[[], T] | None = None) -> T:
    """Declare a field, `runtime("auto")`, or a group, `runtime(factory=RayConfig)`, that may change on resume."""
    if factory is not None:
        group: T = dataclasses.field(default_factory=factory, metadata={"runtime": True})
        return group
    return dataclasses.field(default=default, metadata={"runtime": True})  # type: ignore[return-value]


def added(default: T | None = None, *, is_runtime: bool = False) -> T:
    """Declare a field that earlier versions lacked: hashes and records leave it out while it has its default."""
    metadata = {"added": True, "runtime": is_runtime}
    return dataclasses.field(default=default, metadata=metadata)  # type: ignore[return-value]


def secret(*, factory: Callable[[], T]) -> T:
    """Declare a `runtime` field whose value is never saved, recorded or printed: passwords, tokens."""
    metadata = {"runtime": True, "secret": True}
    value: T = dataclasses.field(default_factory=factory, metadata=metadata, repr=False)
    return value


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The key names of one command.

    `short` maps short names to full keys, `renamed` maps keys of earlier versions to their present names, and
    `renamed_values` maps present keys to {value of an earlier version: present value}. `secret` are the full keys of
    `secret` fields, whose values no message repeats.
    """

    short: Mapping[str, str] = dataclasses.field(default_factory=dict)
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    renamed_values: Mapping[str, Mapping[Any, Any]] = dataclasses.field(default_factory=dict)
    secret: tuple[str, ...] = ()

    def check(self, layer: DictConfig, source: str) -> None:
        """Raise UserError for a key or a value of an earlier version, naming its replacement."""
        for old, new in self.renamed.items():
            if _has(layer, old):
                raise UserError(f"{source}: the key {old} is now called {self.shortest(new)}")
        for key, values in self.renamed_values.items():
            if not _has(layer, key):
                continue
            value = _select(layer, key)
            if not isinstance(value, Container) and value in values:
                old_value = "null" if value is None else value
                raise UserError(f"{source}: {key}={old_value} is now written {key}={values[value]}")

    def translate(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the keys and values of earlier versions in a saved configuration by the present ones."""
        layer = OmegaConf.create(dict(values))
        assert isinstance(layer, DictConfig)
        for old, new in self.renamed.items():
            if _has(layer, old):
                OmegaConf.update(layer, new, _select(layer, old), force_add=True)
                group, _, name = old.rpartition(".")
                (_select(layer, group) if group else layer).pop(name)
                if group and not len(_select(layer, group)):
                    layer.pop(group)
        for key, replacements in self.renamed_values.items():
            if _has(layer, key) and _select(layer, key) in replacements:
                OmegaConf.update(layer, key, replacements[_select(layer, key)])
        plain = OmegaConf.to_container(layer)
        assert isinstance(plain, dict)
        return {str(name): value for name, value in plain.items()}

    def is_of_earlier_version(self, layer: DictConfig) -> bool:
        """True for a resolved configuration of an earlier version: it contains every renamed key."""
        return bool(self.renamed) and all(_has(layer, old) for old in self.renamed)

    def is_secret(self, key: str) -> bool:
        """Return True for the key of a secret, of one within it, and of its group, whose value holds it."""
        return any(f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in self.secret)

    def shortest(self, key: str) -> str:
        """Return the short name of `key`, or `key` itself if it has none."""
        return next((name for name, long in self.short.items() if long == key), key)


def _has(layer: DictConfig, key: str) -> bool:
    group, _, name = key.rpartition(".")
    node = _select(layer, group) if group else layer
    return isinstance(node, DictConfig) and name in node


def _select(layer: DictConfig, key: str) -> Any:
    node: Any = layer
    for name in key.split("."):
        node = node._get_node(name) if isinstance(node, DictConfig) and name in node else None
    return node._value() if isinstance(node, ValueNode) else node


def read_layers(arguments: Sequence[str], keys: Keys) -> list[Layer]:
    """Read the layers of a command line: YAML files in the order given, then the `key=value` arguments.

    Later layers override earlier ones. Raises UserError naming the file or argument that cannot be read.
    """
    files = [item for item in arguments if "=" not in item]
    layers = [(_load_yaml(path, keys), path) for path in files]
    for item in arguments:
        key, separator, value = item.partition("=")
        if not separator:
            continue
        if not key:
            raise UserError(f"{item!r} is neither a YAML file nor key=value; see --help for the keys")
        if not value:
            raise UserError(
                f"{item} has no value; give one, {key}=null for no value, or {key}='\"\"' for an empty text"
            )
        if INTERPOLATION in key:
            raise UserError(f"{item}: {LITERAL}")
        try:
            check_yaml(value)
            layer = OmegaConf.from_dotlist([item])
        except Exception as error:  # PyYAML and OmegaConf raise many types for values that they cannot convert
            if keys.is_secret(key):
                raise UserError(f"the value of {key}= cannot be read; see --help for its form") from None
            raise UserError(f"{item:.200} cannot be read: {one_line(error)}") from None
        source = f"{key}=..." if keys.is_secret(key) else item
        keys.check(layer, source)
        layers.append((_long_keys(layer, keys.short), source))
    return layers


def command_line(command: str, arguments: Sequence[str], keys: Keys) -> str:
    """Return a command with its arguments as a line for a shell, without the values of secret keys."""
    shown = (f"{key}=***" if keys.is_secret(key := item.partition("=")[0].strip()) else item for item in arguments)
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
            merged = OmegaConf.merge(merged, layer)
        except (OmegaConfBaseException, TypeError, OverflowError) as error:
            if problem := _form_difference(merged, layer):
                raise UserError(f"{source}: {problem}; --help lists all keys") from None
            if isinstance(error, OverflowError):
                raise UserError(f"{source}: a number is too large ({error}); --help lists the ranges") from None
            if not isinstance(error, OmegaConfBaseException):
                raise
            if key := next((name for name in secret_keys(cls) if _is_within(str(error.full_key), name)), ""):
                raise UserError(f"{source}: the value of {key} has another form than in --help") from None
            where = f"key {error.full_key}" if error.full_key else "a value is given where a group of keys is expected"
            raise UserError(f"{source}: {str(error).splitlines()[0]} ({where}; --help lists all keys)") from None
    return _build(merged, "")


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


def split_runtime(config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the values of a configuration into nested dictionaries: (all but `runtime` fields, `runtime` fields).

    Without `secret` fields, and without `added` fields that have their defaults.
    """
    fixed: dict[str, Any] = {}
    free: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if item.metadata.get("secret") or (item.metadata.get("added") and value == item.default):
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


def _load_yaml(path: str, keys: Keys) -> DictConfig:
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
    if Path(path).name in RESOLVED_FILES and keys.is_of_earlier_version(loaded):
        translated = OmegaConf.create(keys.translate(loaded))
        assert isinstance(translated, DictConfig)
        loaded = translated
    keys.check(loaded, path)
    return _long_keys(loaded, keys.short)


def _problem(error: Exception) -> str:
    """Describe an error; for YAML without the line of the file that its message quotes, which may hold a secret."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        return f"{error.problem}{line}"
    return one_line(error)


def _long_keys(layer: DictConfig, short: Mapping[str, str]) -> DictConfig:
    """Replace the short names in `layer` by full keys."""
    for name, long in short.items():
        if name in layer:
            OmegaConf.update(layer, long, layer.pop(name), force_add=True)
    return layer
