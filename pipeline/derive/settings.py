"""The settings of a command: those of the job that wrote its source, with the changes of the command line."""

import dataclasses
import os
from collections.abc import Collection, Sequence
from typing import Any, Final, TypeVar, cast

from omegaconf import DictConfig, OmegaConf

from common.config import RESOLVED_FILE, Keys, merge, read_layers
from common.errors import UserError
from common.paths import absolute, check_output_is_absolute
from common.text import one_line
from common.urls import check_no_user
from common.yaml_text import check_yaml
from pipeline.config import KEYS, PipelineConfig
from pipeline.resume.record import flatten
from pipeline.write.store import Store

Options = TypeVar("Options")

RUNNING: Final = ("log", "quiet", "ray", "report")
"""Settings that every command takes: they do not decide the content."""
OF_ONE_RUN: Final = ("overwrite", "dry_run")
"""Settings that a saved configuration never passes on; earlier versions could save a dry run."""


def read_config(store: Store, changes: Sequence[str] = ()) -> PipelineConfig:
    """Return the configuration of the job that wrote an output, with the changes of `key=value` arguments.

    Without OF_ONE_RUN. Raises UserError naming the file or argument, the key and the fix.
    """
    name, content = store.url(RESOLVED_FILE), store.read(RESOLVED_FILE)
    if content is None:
        raise UserError(f"{name} does not exist; give the output folder of a job")
    try:
        text = content.decode()
        check_yaml(text)
        layer: Any = OmegaConf.create(text)
    except Exception as error:  # PyYAML and OmegaConf raise many types
        raise UserError(f"{name} cannot be read: {one_line(error)}") from None
    if not isinstance(layer, DictConfig):
        raise UserError(f"{name} must hold `key: value` lines")
    for key in OF_ONE_RUN:
        layer.pop(key, None)
    config = merge(PipelineConfig, [(layer, name), *read_layers(changes, KEYS)])
    assert isinstance(config, PipelineConfig)
    return config


def given_keys(changes: Sequence[str]) -> set[str]:
    """Return the full keys that `key=value` arguments set. Raises UserError like `read_config`."""
    layers = (OmegaConf.to_container(layer) for layer, _ in read_layers(changes, KEYS))
    return {key for layer in layers if isinstance(layer, dict) for key in flatten(cast(dict[str, Any], layer))}


def check_keys(changes: Sequence[str], taken: Collection[str], command: str) -> None:
    """Raise UserError if `key=value` arguments set a key that is not among `taken`: the command would ignore it.

    The name of a group allows all settings of the group.
    """
    for key in sorted(given_keys(changes)):
        if not any(key == name or key.startswith(f"{name}.") for name in taken):
            raise UserError(f"{command} cannot change {key}, a setting of the job; it takes {', '.join(sorted(taken))}")


def take_paths(arguments: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """Return the absolute values of all `name=PATH`, and the other arguments.

    Raises UserError if the argument is missing or empty, and for a URL with a user name or a password.
    """
    paths = [item.partition("=")[2] for item in arguments if item.startswith(f"{name}=")]
    if not paths or not all(paths):
        raise UserError(f"{name} is not set; give {name}=...")
    for path in paths:
        check_no_user(name, path)
    return [absolute(path) for path in paths], [item for item in arguments if not item.startswith(f"{name}=")]


def take_path(arguments: Sequence[str], name: str) -> tuple[str, list[str]]:
    """Return the absolute value of `name=PATH`, and the other arguments. Raises UserError like `take_paths`.

    Also raises it if there are several, and for a relative output of a Ray job.
    """
    paths, others = take_paths(arguments, name)
    if len(paths) > 1:
        several = ", and pipeline.merge joins several outputs" if name == "source" else ""
        raise UserError(f"{name} is given {len(paths)} times; give one{several}")
    if name == "output":
        given = next(item.partition("=")[2] for item in arguments if item.startswith(f"{name}="))
        check_output_is_absolute(given, "an absolute path or a URL")
    return paths[0], others


def is_option(argument: str, keys: Collection[str] = ()) -> bool:
    """Return True for key=value, and for all values of `keys`; False for paths, also such as data/date=2026."""
    name, sign, _ = argument.partition("=")
    return bool(sign) and (name in keys or ("/" not in name and not os.path.exists(argument)))


def take_output(arguments: Sequence[str], usage: str) -> tuple[str, list[str]]:
    """Return the absolute output that a command changes in place, and the `key=value` arguments.

    Raises UserError unless there is one, and for a URL with a user name or a password.
    """
    outputs = [item for item in arguments if not is_option(item)]
    if len(outputs) != 1:
        raise UserError(f"{len(outputs)} outputs are given; give one: {usage}")
    check_no_user("OUT", outputs[0])
    return absolute(outputs[0]), [item for item in arguments if is_option(item)]


def take_options(arguments: Sequence[str], cls: type[Options]) -> tuple[Options, list[str]]:
    """Return the options of a command, whose keys are the fields of `cls`, and the other arguments.

    Raises UserError for a value of the wrong type, and for an argument that is no `key=value`.
    """
    names = {item.name for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    mine = [item for item in arguments if item.partition("=")[0] in names]
    if plain := [item for item in arguments if "=" not in item]:
        raise UserError(f"{plain[0]!r} is not key=value; see --help for the keys")
    options = merge(cls, read_layers(mine, Keys()))
    assert isinstance(options, cls)
    return options, [item for item in arguments if item not in mine]


def new_config(
    store: Store, changes: Sequence[str], output: str, command: str, allowed: Collection[str] = ("write",)
) -> PipelineConfig:
    """Return the configuration of a new output: that of the source with the `key=value` arguments `changes`.

    Raises UserError if they set others than `allowed` and those that do not decide the content.
    """
    old, new = read_config(store), read_config(store, changes)
    check_keys(changes, (*allowed, *RUNNING, "overwrite"), command)
    if old.write.strip_url_queries and not new.write.strip_url_queries:
        raise UserError("write.strip_url_queries=false: the source has no queries any more; leave it true")
    return dataclasses.replace(new, output=output)
