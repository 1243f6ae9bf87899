"""The settings of a command: those of the job that wrote its source, with the changes of the command line."""

from collections.abc import Collection, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from common.config import RESOLVED_FILE, merge, read_layers
from common.errors import UserError
from common.text import one_line
from common.yaml_text import check_yaml
from pipeline.config import KEYS, PipelineConfig
from pipeline.resume.record import settings_of
from pipeline.write.store import Store


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
