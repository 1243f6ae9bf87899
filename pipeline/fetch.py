"""Command line that loads the models of a job on this machine, so that the job needs no hub and no store for them."""

import sys
from collections.abc import Sequence

from common.cli import EXIT_CODES, command
from common.config_help import print_text
from pipeline.config import load_config

USAGE = f"""\
usage: python -m pipeline.fetch [CONFIG.yaml ...] [key=value ...]

Loads the grounder and the scorer of a job once on the CPU, which downloads what is not on this machine yet, and prints
their names, and the hashes that the job checks on each machine. Then the job runs with HF_HUB_OFFLINE=1.

  python -m pipeline.fetch jobs/pipeline/coyo.yaml grounder=s3://bucket/models/glip_l scorer=openai/clip-vit-base-patch32

{EXIT_CODES}
"""


@command()
def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    if "-h" in arguments or "--help" in arguments:
        print_text(USAGE)
        return 0
    config = load_config(["input=none", "output=none", *arguments])
    # What follows imports torch and spaCy, which takes seconds.
    from pipeline.ground.load import load_grounder
    from pipeline.provenance import make_provenance
    from pipeline.score.scorers import load_scorer

    ground = config.ground
    load_grounder(ground.grounder, "cpu", ground.floor, ground.prompt, vocabulary=ground.vocabulary)
    load_scorer(config.score.scorer, "cpu", config.score.batch_size)
    models = make_provenance(config)["models"]
    for role, model in (("grounder", models["grounder"]), ("scorer", models["scorer"])):
        print_text(f"{role} {model['name']} {model.get('sha256', 'of the hub')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
