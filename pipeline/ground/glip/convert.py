"""Convert a released GLIP checkpoint into a folder of safetensors: `python -m pipeline.ground.glip.convert --help`."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from common.cli import EXIT_CODES, command, set_up_logging
from common.config import Keys, merge, read_layers
from common.config_help import describe, print_text
from common.errors import UserError

logger = logging.getLogger(__name__)

USAGE: Final = f"""\
usage: python -m pipeline.ground.glip.convert CHECKPOINT output=FOLDER [key=value ...]

Check a released checkpoint (a .pth or .safetensors file) and write it to FOLDER in the safetensors format, with its
configuration and vocabulary. Use the folder as a grounder with grounder=FOLDER.

  python -m pipeline.ground.glip.convert glip_tiny.pth output=models/glip_t vocabulary=vocab.txt

{EXIT_CODES}
"""


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
    from common.devices import torch_dtype
    from pipeline.ground.glip.config import CONFIGS
    from pipeline.ground.glip.load import find_vocabulary, load_glip, save_glip
    from pipeline.ground.glip.text import Prompter

    checkpoint = Path(config.checkpoint)
    vocab = find_vocabulary(config.vocabulary, checkpoint)
    model = load_glip(checkpoint, CONFIGS[config.architecture] if config.architecture else None)
    Prompter(vocab, model.config.text)  # raises UserError if the vocabulary does not fit
    save_glip(Path(config.output), model.state_dict(), model.config, vocab, torch_dtype(config.precision))
    logger.info("%s -> %s", checkpoint, config.output)


@command()
def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code, as documented in --help."""
    if not arguments or "-h" in arguments or "--help" in arguments:
        print_text(describe(USAGE, ConvertConfig, {}))
        return 0 if arguments else 2
    set_up_logging(text="%(message)s")
    first = [] if "=" in arguments[0] else [f"checkpoint={arguments[0]}"]
    config = merge(ConvertConfig, read_layers([*first, *arguments[len(first) :]], Keys()))
    try:
        convert(config)
    except OSError as error:
        raise UserError(f"{error}; check the path, its permissions and the space on the disk") from error
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
