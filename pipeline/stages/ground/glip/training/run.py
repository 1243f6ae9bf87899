"""Fine-tune GLIP, or train a new one, on shards of the pipeline: `python -m pipeline.stages.ground.glip.training.run --help`."""

import sys
from collections.abc import Sequence
from typing import Final

from hypergrit_common.cli import EXIT_CODES, command, set_up_logging
from hypergrit_common.config_help import describe, help_topic, print_text
from hypergrit_common.errors import UserError
from pipeline.stages.ground.glip.training.config import KEYS, GlipTrainConfig, load_config

USAGE: Final = f"""\
usage: python -m pipeline.stages.ground.glip.training.run SHARDS [CONFIG.yaml ...] [key=value ...]

SHARDS is an output folder of the pipeline, its grit/ or arrow/, a glob of their files, or an fsspec URL of any of
these. To resume an interrupted run, repeat the command. After the first checkpoint, the folder `output` can be used as
a grounder: grounder=OUTPUT.

  python -m pipeline.stages.ground.glip.training.run out/mine output=out/my_glip init=models/glip_t steps=2000
  python -m pipeline.stages.ground.glip.training.run out/mine output=out/my_mini init=new:miniature lr=2e-3 optim.language_lr_ratio=1

{EXIT_CODES}
"""


@command("the last checkpoint is kept; repeat the command to resume")
def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code, as documented in --help."""
    if (topic := help_topic(arguments or ["--help"])) is not None:
        print_text(describe(USAGE, GlipTrainConfig, KEYS.short, topic=topic))
        return 0 if arguments else 2
    set_up_logging()
    config = load_config(arguments)
    from pipeline.stages.ground.glip.training.training_run import run  # imports torch, which takes seconds

    try:
        run(config)
    except OSError as error:
        raise UserError(f"{error}; check the path, its permissions and the space on the disk") from error
    except FloatingPointError as error:
        raise UserError(f"{error}; try a lower lr or a larger optim.warmup_steps, with another output") from error
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
