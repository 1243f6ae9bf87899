"""A command that embeds shards with a model, as `python -m trainer.analyses.root` and `python -m trainer.analyses.disk`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hypergrit_common.cli import EXIT_CODES, set_up_logging
from hypergrit_common.config import Keys, Trusting, check_range, merge, read_layers
from hypergrit_common.config_help import describe, print_text
from hypergrit_common.devices import check_device
from hypergrit_common.errors import UserError
from hypergrit_common.locations import Locations
from trainer.checkpoints.model import LoadedModel, load_model


@dataclass(frozen=True, kw_only=True)
class ShardsConfig(Trusting):
    """Settings of a command that embeds shards."""

    # shards in a layout of training shards: a folder, a glob, or several of them, as in training
    shards: Locations = ""
    # file for the result
    output: str = ""
    # maximum number of samples; 0: all
    max_samples: int = 0
    # number of samples that are in memory at once
    batch_size: int = 256
    # name of the model in a released .pth file
    model_name: str | None = None
    # device: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = "auto"

    def __post_init__(self) -> None:
        if not (self.shards and self.output):
            raise UserError("shards or output is missing; give shards=FOLDER output=FILE")
        check_range(self, "max_samples", least=0)
        check_range(self, "batch_size", least=1)
        check_device(self)


C = TypeVar("C", bound=ShardsConfig)


def run(arguments: Sequence[str], usage: str, kind: type[C], work: Callable[[str, LoadedModel, C], str]) -> int:
    """Run a command MODEL key=value ... on shards, print what `work` returns, and return the exit code."""
    if len(arguments) < 2 or "-h" in arguments or "--help" in arguments:
        print_text(f"{usage}\n{describe('', kind, {}).strip()}\n\n{EXIT_CODES}")
        return 0 if {"-h", "--help"} & {*arguments} else 2
    set_up_logging()
    path, *others = arguments
    config = merge(kind, read_layers(others, Keys()))
    try:
        loaded = load_model(path, config.model_name, trust=config.trust)
        print_text(f"{config.output}: {work(path, loaded, config)}")
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    return 0
