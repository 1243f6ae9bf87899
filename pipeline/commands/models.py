"""The verb `models`: fetch the models of a job to this machine, or convert a released GLIP checkpoint."""

import dataclasses
from collections.abc import Sequence
from typing import Final

from hypergrit_common.cli import EXIT_CODES, command
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
    from pipeline.stages.ground.glip.convert import ConvertConfig, convert_with

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
