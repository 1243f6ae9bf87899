"""Fine-tune GLIP, or train a new one, on shards of the pipeline: `python -m pipeline.ground.glip.train --help`."""

import logging
import sys
from collections.abc import Sequence
from typing import Final

from common.config_help import describe, print_text
from common.errors import UserError
from pipeline.ground.glip.training.config import KEYS, GlipTrainConfig, load_config

USAGE: Final = """\
usage: python -m pipeline.ground.glip.train SHARDS [CONFIG.yaml ...] [key=value ...]

SHARDS is an output folder of the pipeline, its grit/ or arrow/, a glob of their files, or an fsspec URL of any of
these. To resume an interrupted run, repeat the command. After the first checkpoint, the folder `output` can be used as
a grounder: grounder=OUTPUT. Exit status: 0 after training, 2 after an error that the user can fix.

  python -m pipeline.ground.glip.train out/mine output=out/my_glip init=models/glip_t steps=2000
  python -m pipeline.ground.glip.train out/mine output=out/my_mini init=new:miniature lr=2e-3 optim.language_lr_ratio=1
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns 0, or 2 after an error that the user can fix."""
    if not arguments or "--help" in arguments or "-h" in arguments:
        print_text(describe(USAGE, GlipTrainConfig, KEYS.short))
        return 0 if arguments else 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        config = load_config(arguments)
        from pipeline.ground.glip.training.run import run  # imports torch, which takes seconds

        run(config)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
        print(
            f"error: {error}; try a lower lr or a larger optim.warmup_steps, and give another output", file=sys.stderr
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
