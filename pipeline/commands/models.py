"""The verb `models`: fetch the models of a job to this machine, or convert a released GLIP checkpoint."""

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from hypergrit_common.cli import EXIT_CODES, command, set_up_logging
from hypergrit_common.config import Keys, merge, read_layers
from hypergrit_common.config_help import describe, help_topic, list_keys, print_text
from hypergrit_common.errors import UserError
from pipeline.config import KEYS, PipelineConfig, load_config

USAGE: Final = f"""\
usage: hypergrit models fetch [CONFIG.yaml ...] [key=value ...]
       hypergrit models convert CHECKPOINT output=FOLDER [key=value ...]

fetch    Loads the grounder and the scorer of a job once on the CPU, which downloads what is not on this machine yet, and
         prints their names, and the hashes that the job checks on each machine. Then the job runs with HF_HUB_OFFLINE=1.
convert  Checks a released GLIP checkpoint (a .pth or .safetensors file) and writes it to FOLDER in the safetensors
         format, with its configuration and vocabulary. The folder is a grounder: grounder=FOLDER.

  hypergrit models fetch grounder=IDEA-Research/grounding-dino-tiny scorer=openai/clip-vit-base-patch32
  hypergrit models fetch mine.yaml                                 the models of a job file
  hypergrit models fetch grounder=s3://bucket/models/glip_l scorer=open_clip:ViT-B-32/laion2b_s34b_b79k
  hypergrit models convert glip_tiny.pth output=models/glip_t vocabulary=vocab.txt
  hypergrit run ... grounder=models/glip_t                         use a converted checkpoint

`--help KEY` also explains a key of a job.

{EXIT_CODES}
"""


@command()
def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    if (topic := help_topic(arguments or ["--help"])) is not None:
        more = list_keys(PipelineConfig)
        print_text(describe(USAGE, ConvertConfig, KEYS.short, topic=topic, more=more, title="keys of convert"))
        return 0 if arguments else 2
    name, *rest = arguments
    actions = {"fetch": fetch, "convert": convert_with}
    if name not in actions:
        raise UserError(f"{name!r} is neither fetch nor convert; see hypergrit models --help")
    actions[name](rest)
    return 0


def fetch(arguments: Sequence[str]) -> None:
    """Load the models of a job on this machine, so that the job needs no hub and no store for them."""
    config = load_config(["input=none", "output=none", *arguments])
    # What follows imports torch and spaCy, which takes seconds.
    from pipeline.run.provenance import check_models, make_provenance
    from pipeline.stages.ground.load import make_grounder
    from pipeline.stages.score.scorers import make_scorer

    check_models(config)  # one request; a download would repeat its own
    make_grounder(dataclasses.replace(config.ground, device="cpu", precision="auto"))
    make_scorer(dataclasses.replace(config.score, device="cpu"), config.trust)
    models = make_provenance(config)["models"]
    for role, model in (("grounder", models["grounder"]), ("scorer", models["scorer"])):
        print_text(f"{role} {model['name']} {model.get('sha256', 'of the hub')}")


# Convert a released GLIP checkpoint into a folder of safetensors: `hypergrit models convert`.

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
