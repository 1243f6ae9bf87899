"""Convert a released GLIP checkpoint into a folder of safetensors: `hypergrit models convert`."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hypergrit_common.cli import set_up_logging
from hypergrit_common.config import Keys, merge, read_layers
from hypergrit_common.errors import UserError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """The configuration of a conversion."""

    # released checkpoint: a .pth or .safetensors file; the first argument
    checkpoint: str = ""
    # folder to write
    output: str = ""
    # vocab.txt of bert-base-uncased; null: the file beside the checkpoint
    vocabulary: str | None = None
    # architecture of the network: glip_t_a, glip_t or glip_l; null: determined from the tensors of the checkpoint
    architecture: Literal["glip_t_a", "glip_t", "glip_l"] | None = None
    # number format of the stored weights: fp32 or fp16
    precision: Literal["fp32", "fp16"] = "fp32"

    def __post_init__(self) -> None:
        for key in ("checkpoint", "output"):
            if not getattr(self, key):
                raise UserError(f"{key} is not set; see --help")


def convert(config: ConvertConfig) -> None:
    """Convert `config.checkpoint` into the folder `config.output`.

    Raises UserError if the checkpoint or the vocabulary is missing or does not fit the architecture, OSError if a file
    cannot be read or written.
    """
    from hypergrit_common.devices import torch_dtype
    from pipeline.stages.ground.glip.config import CONFIGS
    from pipeline.stages.ground.glip.load import find_vocabulary, load_glip, save_glip
    from pipeline.stages.ground.glip.text import Prompter

    checkpoint = Path(config.checkpoint)
    vocab = find_vocabulary(config.vocabulary, checkpoint)
    model = load_glip(checkpoint, CONFIGS[config.architecture] if config.architecture else None)
    Prompter(vocab, model.config.text)  # raises UserError if the vocabulary does not fit
    save_glip(Path(config.output), model.state_dict(), model.config, vocab, torch_dtype(config.precision))
    logger.info("%s -> %s", checkpoint, config.output)


def convert_with(arguments: Sequence[str]) -> None:
    """Convert a checkpoint with the arguments of `hypergrit models convert`.

    Args:
        arguments: YAML files and key=value (`ConvertConfig`); the first one may be the checkpoint.

    Raises:
        UserError: an argument is wrong, or a file is missing, damaged, of another network, or cannot be written.
    """
    set_up_logging(text="%(message)s")
    first = [f"checkpoint={item}" for item in arguments[:1] if "=" not in item]
    config = merge(ConvertConfig, read_layers([*first, *arguments[len(first) :]], Keys()))
    try:
        convert(config)
    except OSError as error:
        raise UserError(f"{error}; check the path, its permissions and the space on the disk") from error
