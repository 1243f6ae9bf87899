"""The settings of a command: those of the job that wrote its source, with the changes of the command line."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from common.config import RESOLVED_FILE, Keys, merge, read_layers
from common.errors import UserError
from common.paths import absolute, check_output_is_absolute
from common.text import one_line
from common.urls import check_no_user
from common.yaml_text import check_yaml
from pipeline.config import KEYS, PipelineConfig
from pipeline.resume.record import settings_of
from pipeline.write.store import Store

Options = TypeVar("Options")


def read_config(store: Store, changes: Sequence[str] = ()) -> PipelineConfig:
    """Return the configuration of the job that wrote an output, with the changes of `key=value` arguments.

    Raises UserError naming the file or argument, the key and the fix.
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
    config = merge(PipelineConfig, [(layer, name), *read_layers(changes, KEYS)])
    assert isinstance(config, PipelineConfig)
    return config


def take_argument(arguments: Sequence[str], name: str) -> tuple[str, list[str]]:
    """Return the value of `name=value`, and the other arguments. Raises UserError if it is missing."""
    values = [item.partition("=")[2] for item in arguments if item.startswith(f"{name}=")]
    if not values or not values[-1]:
        raise UserError(f"{name} is not set; give {name}=...")
    return values[-1], [item for item in arguments if not item.startswith(f"{name}=")]


def check_changes(old: PipelineConfig, new: PipelineConfig, allowed: Collection[str], command: str) -> None:
    """Raise UserError if a setting that decides the content differs and is not one of `allowed`.

    A name that ends with a dot allows a group of settings.
    """
    before, after = settings_of(old), settings_of(new)
    for key, value in after.items():
        if before.get(key) != value and not any(key == name or key.startswith(f"{name}.") for name in allowed):
            raise UserError(
                f"{command} cannot change {key} from {before.get(key)!r} to {value!r}, which needs the job; it changes "
                f"{', '.join(sorted(allowed))}"
            )


def take_folders(arguments: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """Return the absolute values of all `name=FOLDER`, and the other arguments.

    Raises UserError if the argument is missing or empty, and for a URL with a user name or a password.
    """
    folders = [item.partition("=")[2] for item in arguments if item.startswith(f"{name}=")]
    if not folders or not all(folders):
        raise UserError(f"{name} is not set; give {name}=...")
    for folder in folders:
        check_no_user(name, folder)
    return [absolute(folder) for folder in folders], [item for item in arguments if not item.startswith(f"{name}=")]


def take_folder(arguments: Sequence[str], name: str) -> tuple[str, list[str]]:
    """Return the absolute value of `name=FOLDER`, and the other arguments. Raises UserError like `take_folders`.

    Also raises it if there are several, and for a relative output of a Ray job.
    """
    folders, others = take_folders(arguments, name)
    if len(folders) > 1:
        raise UserError(f"{name} is given {len(folders)} times; give one, and pipeline.merge joins several outputs")
    if name == "output":
        given = next(item.partition("=")[2] for item in arguments if item.startswith(f"{name}="))
        check_output_is_absolute(given, "an absolute path or a URL")
    return folders[0], others


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


def with_other_files(old: PipelineConfig, new: PipelineConfig, output: str, command: str) -> PipelineConfig:
    """Return `new` with another output. Raises UserError if it differs from `old` in more than how shards are written."""
    check_changes(old, new, ("write",), command)
    if old.write.strip_url_queries and not new.write.strip_url_queries:
        raise UserError("write.strip_url_queries=false: the source has no queries any more; leave it true")
    return dataclasses.replace(new, output=output)
