"""Write cached features: `hypergrit features shards=... model=... output=...`. `--help` explains every key."""

import sys
from collections.abc import Sequence

from hypergrit_common.cli import EXIT_CODES, command, set_up_logging
from hypergrit_common.config import Keys, merge, read_layers
from hypergrit_common.config_help import describe, help_topic, print_text
from trainer.features.config import FeaturesConfig

USAGE = f"""\
usage: hypergrit features shards=SHARDS model=MODEL output=FOLDER [key=value ...]

Write the outputs of a model's frozen towers for the images, boxes, captions and phrases of training shards, in half
precision. A head with the loss of any model is then trained on them in seconds, on a CPU too (docs/quickstart.md):

  hypergrit features shards=out/mine/train model=out/clip output=out/features dry_run=true
  hypergrit features shards=out/mine/train model=out/clip output=out/features
  hypergrit train jobs/train/heads.yaml model_name=hycoclip data.features=out/features output=out/head
  python -m trainer.torchrun --nproc-per-node 8 -m trainer.features.command shards=... model=out/clip output=...

Repeat the command to go on after an interruption. A sample that cannot be used is counted with its reason.

{EXIT_CODES}"""


@command("finished files are kept; repeat the command to go on")
def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code, as documented in --help."""
    if (topic := help_topic(arguments or ["--help"])) is not None:
        print_text(describe(USAGE, FeaturesConfig, topic=topic))
        return 0 if arguments else 2
    set_up_logging()
    config: FeaturesConfig = merge(FeaturesConfig, read_layers(arguments, Keys()))
    from trainer.features.write import write_features  # imports torch, which --help does not need

    write_features(config)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
