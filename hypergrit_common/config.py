"""Configuration: frozen dataclasses, filled from YAML files and `key.sub=value` arguments.

Unknown keys and wrong types are errors that name the file or argument. A configuration class checks its own values in
`__post_init__` and raises a UserError that begins with the field name; `merge` prepends the names of the enclosing
groups.

Fields marked with `runtime` affect how a result is computed, not what it is: devices, batch sizes, timeouts. They are
recorded with the results and may change when a job or a training run resumes. Values of fields marked with `reaches` name
what lies outside of an output. Of a saved configuration, which may be a stranger's, `content_layers` leaves out the
former, and the latter unless the user names or trusts them.
"""

import dataclasses
import difflib
import json
import logging
import math
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from hypergrit_common.config_help import list_keys
from hypergrit_common.errors import UserError, prefixed
from hypergrit_common.files import check_file
from hypergrit_common.paths import absolute
from hypergrit_common.removed import REMOVED
from hypergrit_common.text import one_line, redact
from hypergrit_common.urls import clean, text_without_queries
from hypergrit_common.yaml_text import dump_yaml, parse_value, parse_yaml, plain

Layer = tuple[dict[str, Any], str]
"""Values as they are written, with their source: the file or argument that sets them."""

RESOLVED_FILE = "config.yaml"
"""Name of the file in which a job or a training run saves its resolved configuration. A file with this name is taken for
a saved configuration, wherever it is; one with another name is the user's own."""

logger = logging.getLogger("hypergrit")

T = TypeVar("T")


def runtime(default: T | None = None, *, factory: Callable[[], T] | None = None) -> T:
    """Declare a field, `runtime("auto")`, or a group, `runtime(factory=RayConfig)`, that may change on resume."""
    if factory is not None:
        group: T = dataclasses.field(default_factory=factory, metadata={"runtime": True})
        return group
    return dataclasses.field(default=default, metadata={"runtime": True})  # type: ignore[return-value]


def secret(*, factory: Callable[[], T]) -> T:
    """Declare a `runtime` field whose value is never saved, recorded or printed: passwords, tokens, `trust`."""
    metadata = {"runtime": True, "secret": True}
    value: T = dataclasses.field(default_factory=factory, metadata=metadata, repr=False)
    return value


def reaches(default: T, *harmless: str, is_runtime: bool = False) -> T:
    """Declare a field whose value names a file, host, endpoint, model or class outside of an output.

    A saved configuration may give it the default and the `harmless` values, which are this version's own. `is_runtime`:
    it is a `runtime` field too.
    """
    metadata = {"reaches": (default, *harmless), "runtime": is_runtime}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Trusting:
    """Settings with the key `trust`, the same in every verb."""

    # what the files of a model or a saved configuration (config.yaml) may name: classes of your own, module:Class, whose code
    # runs, and of a saved configuration also paths, hosts, endpoints and models. Never saved (docs/extending.md)
    trust: tuple[str, ...] = secret(factory=tuple)


SECRET_WORD: Final = re.compile(r"(?i)(token|secret|passw(or)?d|access_?key)$")


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The key names of one command.

    `short` maps short names to full keys. `secret` are the full keys of `secret` fields, whose values no message repeats,
    `removed` those of earlier versions with their defaults.
    """

    short: Mapping[str, str] = dataclasses.field(default_factory=dict)
    secret: tuple[str, ...] = ()
    removed: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def is_secret(self, key: str) -> bool:
        """Return True for the key of a secret, also misspelt or without its group, of one within it, and of its group."""
        known = {*self.secret, *(name.rpartition(".")[2] for name in self.secret)}
        last = key.rpartition(".")[2]
        is_misspelt = any(difflib.get_close_matches(name, known, n=1, cutoff=0.8) for name in (key, last))
        is_misspelt |= SECRET_WORD.search(last) is not None  # of another program, such as hf_token
        return is_misspelt or any(f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in known)


def _select(layer: Any, key: str) -> Any:
    for name in key.split("."):
        layer = layer.get(name) if isinstance(layer, dict) else None
    return layer


def last_value(layers: Sequence[Layer], key: str) -> Any:
    """Return the value of a full key in the last layer that sets it; None if none does."""
    found = (value for layer, _ in reversed(layers) if (value := _select(layer, key)) is not None)
    return plain(next(found, None))


def content_layers(
    cls: type, saved: Sequence[Layer], given: Sequence[Layer], follows: bool = True, trusted: Sequence[str] = ()
) -> list[Layer]:
    """Return layers of saved configurations with only what decides the content: an output may come from anyone.

    `runtime` fields are left out, and what `given`, the layers of the user, sets. Fields marked with `reaches` may have
    their harmless values, those in `trusted` or in the key `trust` of `given`, and the folder of the configuration itself.
    Without `follows` they are mere data, and have any value. Raises UserError that names all values which they may not have.
    """
    own = {key for layer, _ in given for key in flatten(layer)}
    allowed = [*trusted, *map(str, last_value(given, "trust") or ())]
    found, named, names = list[Layer](), list[str](), dict[str, None]()
    for layer, source in saved:
        refused: dict[str, list[str]] = {}
        content = _content(cls, layer, own, {*allowed, absolute(os.path.dirname(source))}, refused)
        found.append((content, source))
        if refused:
            named.append(f"{source} names {shlex.join(refused)}")
            names |= dict.fromkeys(text for texts in refused.values() for text in texts)
    if follows and named:
        raise UserError(
            f"{'; '.join(named)}, which is not followed from a saved configuration; if you trust it, give the same on the "
            f"command line, or give {shlex.quote(f'trust={as_argument([*names])}')}"
        )
    return found


def _content(
    cls: type,
    values: Mapping[str, Any],
    own: Collection[str],
    allowed: Collection[str],
    refused: dict[str, list[str]],
    prefix: str = "",
) -> dict[str, Any]:
    """Return what `content_layers` takes from a group; add to `refused`, by argument, the texts that are not allowed."""
    groups, fields = _groups(cls, {}), {item.name: item for item in dataclasses.fields(cls)}
    found: dict[str, Any] = {}
    for name, value in values.items():
        key, marks = f"{prefix}{name}", fields[name].metadata if name in fields else {}
        harmless = marks.get("reaches")
        if key in own or (marks.get("runtime") and not harmless):
            continue
        if harmless:
            items = value if isinstance(value, list) else [value]
            items = [item for item in items if item not in (None, "", *harmless)]  # as written: `no` is a path
            texts = [text for text in map(as_argument, items) if not {text, absolute(text)} & {*allowed}]
            if texts:
                refused[f"{key}={as_argument(value)}"] = texts
        is_group = name in groups and isinstance(value, Mapping)
        found[name] = _content(groups[name], value, own, allowed, refused, f"{key}.") if is_group else value
    return found


def as_argument(value: Any) -> str:
    """Return a plain value as it is written on the command line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def log_left_out(cls: type, saved: Sequence[Layer], given: Sequence[Layer]) -> None:
    """Say which settings `content_layers` leaves out of saved configurations although they are not the defaults."""
    if not saved:
        return
    own = {key for layer, _ in given for key in flatten(layer)} | {*marked_keys(cls, "secret")}
    defaults = flatten({key.name: key.default for key in list_keys(cls) if key.is_runtime})
    for key in {*own, *marked_keys(cls, "reaches")} & defaults.keys():
        del defaults[key]
    for layer, source in saved:
        values = flatten(plain(layer)).items()
        left = [f"{key}={as_argument(value)}" for key, value in values if key in defaults and value != defaults[key]]
        if left:
            text = "%s is a saved configuration, of which only what decides the content is read; give again what you need of %s"
            logger.info(text, source, shlex.join(left))


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
        try:
            layer = nested(key, parse_value(value))
        except (ValueError, yaml.YAMLError) as error:
            if keys.is_secret(key):
                raise UserError(f"the value of {key}= cannot be read; see --help for its form") from None
            raise UserError(f"{item:.200} cannot be read: {one_line(error)}{ipv6_hint(value)}") from None
        layers.append(make_layer(layer, f"{key}=..." if keys.is_secret(key) else item, keys))
    return layers


def make_layer(values: Mapping[str, Any], source: str, keys: Keys) -> Layer:
    """Return a layer of nested values, by the full keys, without the settings that `keys` has as removed.

    Raises UserError like `without_removed`.
    """
    layer = {name: value for name, value in values.items() if name not in keys.short}
    for name in keys.short.keys() & values.keys():
        layer = merged(layer, nested(keys.short[name], values[name]))
    return without_removed(layer, keys.removed, source), source


def without_removed(
    values: Mapping[str, Any], removed: Mapping[str, Any], source: str, prefix: str = ""
) -> dict[str, Any]:
    """Return nested settings without the keys of `removed`. Raises UserError if one has another value than there."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key, kept = f"{prefix}{name}", value
        if key in removed:
            if removed[key] not in (value, plain(value)):
                raise UserError(f"{source}: {key} was {REMOVED}; leave it out, or use that version")
            continue
        if isinstance(value, dict):
            kept = without_removed(value, removed, source, f"{key}.")
        if kept or not value:  # else a group that had no other settings
            found[name] = kept
    return found


def without_keys(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return nested values without the keys `names`, at any depth."""
    return {
        key: without_keys(value, names) if isinstance(value, dict) else value
        for key, value in values.items()
        if key not in names
    }


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
    values: dict[str, Any] = {}
    for layer, source in layers:
        with prefixed(f"{source}: "):
            values = merged(values, _converted(cls, layer, kinds or {}))
    return _build(cls, values, kinds or {})


def merge_some(cls: type, layers: Sequence[Layer]) -> Any:
    """Build a `cls` like `merge` from the settings in `layers` that it has; the others are left out."""
    names = {item.name for item in dataclasses.fields(cls)}
    return merge(cls, [({name: layer[name] for name in names & layer.keys()}, source) for layer, source in layers])


def from_plain(cls: type, values: Mapping[str, Any], source: str, kinds: Mapping[str, type] | None = None) -> Any:
    """Build a `cls` from the plain values of a file, such as a JSON object; `kinds` as in `merge`.

    Raises UserError, beginning with `source`, for an unknown key or a value of the wrong type.
    """
    with prefixed(f"{source}: "):
        return _build(cls, _converted(cls, values, kinds or {}), kinds or {})


def nested(key: str, value: Any) -> Any:
    """Return a value within the groups of its full key."""
    return reduce(lambda inner, name: {name: inner}, reversed(key.split(".")), value)


def merged(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values, replaced by those of another mapping, at any depth."""
    result = dict(values)
    for key, value in others.items():
        before = result.get(key)
        result[key] = merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return result


# Values of the types that the fields of a configuration class declare.

_hints = cache(get_type_hints)
_adapter = cache(TypeAdapter[Any])


def _groups(cls: type, kinds: Mapping[str, type]) -> dict[str, type]:
    """Return the classes of the fields that are groups of settings."""
    found = {item.name: kinds.get(item.name, _hints(cls)[item.name]) for item in dataclasses.fields(cls)}
    return {name: kind for name, kind in found.items() if is_dataclass(kind) and isinstance(kind, type)}


def _converted(cls: type, values: Mapping[str, Any], kinds: Mapping[str, type], prefix: str = "") -> dict[str, Any]:
    """Return nested values with the types of the fields. Raises UserError for an unknown key or a value of another type."""
    groups, fields = _groups(cls, kinds), {item.name: item for item in dataclasses.fields(cls)}
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in fields:
            raise UserError(
                f"there is no key {key}{_did_you_mean(name, cls, groups, prefix)}; --help all lists all keys"
            )
        if name not in groups:
            found[name] = _value(value, _hints(cls)[name], key, is_secret="secret" in fields[name].metadata)
        elif isinstance(value, Mapping):
            found[name] = _converted(groups[name], value, {}, f"{key}.")
        else:
            raise UserError(f"{key} is a group of keys, not one value; --help {key} lists them")
    return found


def _value(value: Any, hint: Any, key: str, is_secret: bool) -> Any:
    """Return a value with the type of its field: as YAML reads it or, if the field holds a text, as it was written."""
    try:
        return _adapter(hint).validate_json(json.dumps(plain(value)), strict=True)
    except ValidationError as error:
        found = error.errors()
    try:
        return _adapter(hint).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        if is_secret:
            raise UserError(f"the value of {key} has another form than in --help") from None
        raise UserError(_explain(value, hint, key, found)) from None


FORMS: Final = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "string": "a text", "none": "null",
    "tuple": "a list", "dict": "a mapping {name: value}",
}  # fmt: skip
"""Beginning of the type of an error of pydantic -> what it expects."""


def _explain(value: Any, hint: Any, key: str, errors: Sequence[Any]) -> str:
    """Describe a value that is none of its field."""
    kind = next((option for option in (hint, *get_args(hint)) if get_origin(option) in (tuple, dict)), None)
    if get_origin(kind) is dict and not isinstance(value, Mapping):
        return f"{key} must be a mapping {{name: value}}, not {'a list' if isinstance(value, list) else 'one value'}"
    if get_origin(kind) is tuple and isinstance(value, Mapping):
        return f"{key} must be a list, not a mapping"
    if get_origin(kind) is tuple and not isinstance(value, list):
        return f"{key} must be a list; write [{value}] for one value"
    if errors[0]["type"] in ("missing", "too_long"):
        return f"{key} has {len(value)} values; give {len(get_args(kind))}"
    expected = (error.get("ctx", {}).get("expected") or FORMS.get(error["type"].partition("_")[0]) for error in errors)
    forms = dict.fromkeys(str(form).replace("'", "") for form in expected if form)
    shown = value if isinstance(value, str) else json.dumps(plain(value))
    return f"{key} is {shown:.80}; give {' or '.join(forms) or 'another value'}"


def _did_you_mean(wrong: str, cls: type, groups: Mapping[str, type], prefix: str) -> str:
    """Return a question with the setting that is spelt like an unknown one or abbreviates it, such as lr of learning_rate.

    One of this group comes first, then those of groups in it, such as model.gap_weight.
    """
    names = [item.name for item in dataclasses.fields(cls)]
    inner = [f"{group}.{item.name}" for group, kind in groups.items() for item in dataclasses.fields(kind)]
    initials = "".join(word[0] for word in wrong.split("_") if word)
    abbreviating = [name for name in (*names, *inner) if name.rpartition(".")[2] == initials]
    last = {name.rpartition(".")[2]: name for name in reversed(inner)}
    nested_ones = (last[name] for name in difflib.get_close_matches(wrong, last, n=1))
    found = [*difflib.get_close_matches(wrong, names, n=1), *abbreviating, *nested_ones]
    return f". Did you mean: '{prefix}{found[0]}'?" if found else ""


def _build(cls: type, values: Mapping[str, Any], kinds: Mapping[str, type], prefix: str = "") -> Any:
    """Build the dataclass of a group whose keys begin with `prefix`, which its messages begin with."""
    groups = _groups(cls, kinds).items()
    given = {**values, **{name: _build(kind, values.get(name, {}), {}, f"{prefix}{name}.") for name, kind in groups}}
    with prefixed(prefix):
        for item in dataclasses.fields(cls):
            if item.name not in given and item.default is item.default_factory is dataclasses.MISSING:
                raise UserError(f"{item.name} is not set; give {prefix}{item.name}=...")
        return cls(**given)


def marked_keys(cls: type, mark: str, kinds: Mapping[str, type] | None = None, prefix: str = "") -> Iterator[str]:
    """Yield the keys and groups of `cls` that are marked with `runtime`, `secret` or `reaches`; `kinds` as in `merge`."""
    groups = _groups(cls, kinds or {})
    for item in dataclasses.fields(cls):
        if item.metadata.get(mark):
            yield prefix + item.name
        elif item.name in groups:
            yield from marked_keys(groups[item.name], mark, prefix=f"{prefix}{item.name}.")


def runtime_keys(cls: type, kinds: Mapping[str, type] | None = None) -> set[str]:
    """Return the keys and groups of `cls` that are marked with `runtime`; `kinds` as in `merge`."""
    return set(marked_keys(cls, "runtime", kinds))


def default_settings(config: Any) -> dict[str, Any]:
    """Return the nested defaults of the settings of a configuration."""
    found: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        if is_dataclass(value := getattr(config, item.name)):
            found[item.name] = default_settings(value)
        elif item.default_factory is not dataclasses.MISSING:
            found[item.name] = item.default_factory()
        elif item.default is not dataclasses.MISSING:
            found[item.name] = item.default
    return found


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by full key, as JSON gives them back."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return cast(dict[str, Any], json.loads(json.dumps(flat)))


def _public(config: Any) -> dict[str, Any]:
    """Return the nested values of a configuration without those of `secret` fields."""
    values = {x.name: getattr(config, x.name) for x in dataclasses.fields(config) if not x.metadata.get("secret")}
    return {name: _public(value) if is_dataclass(value) else value for name, value in values.items()}


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
            free[item.name] = _public(value) if is_dataclass(value) else value
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
    return dump_yaml(clean(_public(config), strip_query=False, strip_commands=True))


def _load_yaml(path: str) -> dict[str, Any]:
    text = ""
    try:
        check_file(path)
        loaded = parse_yaml(text := Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"config file {path!r} does not exist; jobs/ holds examples") from None
    except Exception as error:  # PyYAML raises many types for values that it cannot convert
        raise UserError(f"config file {path!r} cannot be read: {_problem(error, text)}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"config file {path!r} must hold `key: value` lines")
    return loaded


def ipv6_hint(text: str) -> str:
    """Return what to do about an IPv6 address in a list, whose colons YAML reads; "" without one."""
    return '; put IPv6 addresses in quotes, such as ["::1"]' if re.search(r"[\[,\s][\da-fA-F:]*::", f" {text}") else ""


def _problem(error: Exception, text: str) -> str:
    """Describe an error; for YAML without the line of the file that its message quotes, which may hold a secret."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        if error.problem_mark is None:
            return error.problem
        line = error.problem_mark.line
        return f"{error.problem} in line {line + 1}{ipv6_hint(''.join(text.splitlines()[line : line + 1]))}"
    return one_line(error)
