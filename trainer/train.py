"""Train a model: `python -m trainer.train jobs/train/hycoclip.yaml key=value`. `--help` teaches every key."""

import logging
import os
import sys
from collections.abc import Sequence

from common.config_help import print_text
from common.errors import UserError
from trainer.config import help_text, load_config

USAGE = """\
usage: python -m trainer.train [CONFIG.yaml ...] [key=value ...]

Trains CLIP, MERU, HyCoCLIP, PHyCLIP, PoinCLIP or Syntax-MERU on shards that the pipeline wrote, HyCoCLIP's, or GRIT's. A run that was
killed goes on from its last checkpoint when the same command is given again.

  python -m trainer.train jobs/train/hycoclip.yaml shards=out/grit/train output=out/hycoclip
  torchrun --nproc-per-node 8 -m trainer.train jobs/train/hycoclip.yaml jobs/train/vit_b.yaml shards=... output=...
  ray job submit --working-dir . -- python -m trainer.train jobs/train/hycoclip.yaml ray.workers=8 shards=... output=/data/...

Exit code: 0 done, 1 a bug, 2 something you can mend (the message says what), 128 + n stopped by signal n and saved.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code that --help promises."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    try:
        if "-h" in arguments or "--help" in arguments:
            print_text(help_text(USAGE, arguments))
            return 0
        return run(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(arguments: Sequence[str]) -> int:
    """Load the configuration and train, here or on Ray, which is imported only where it is used."""
    config = load_config(arguments)
    if config.ray.workers:
        from trainer.on_ray import train_on_ray, with_absolute_output

        train_on_ray(with_absolute_output(config))
        return 0
    if int(os.environ.get("RANK", "0")):
        logging.getLogger().setLevel(logging.WARNING)  # one process tells what happens
    from trainer.loop import StoppedError, train

    try:
        train(config)
    except StoppedError as stopped:
        print(stopped, file=sys.stderr)
        return 128 + stopped.number
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
