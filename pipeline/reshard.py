"""Command line of reshard: other numbers of samples per shard, and another order."""

import sys
from collections.abc import Sequence
from typing import Final

from common.cli import EXIT_CODES, FAILED_SHARDS, command, set_up_logging
from common.config_help import describe, print_text
from pipeline.derive.options import ReshardOptions

USAGE: Final = f"""\
usage: python -m pipeline.reshard source=OUT output=NEW samples_per_shard=N [key=value ...]

Divides the rows of an output into shards with N samples each, shuffled across shards by a seed. Rows keep their keys.
Dropped rows stay in the ledger, spread evenly over the shards. No model runs, and the source is left alone.

  python -m pipeline.reshard source=out/coyo output=out/shuffled samples_per_shard=10000 seed=1
  python -m pipeline.reshard source=s3://data/coyo output=s3://data/train samples_per_shard=5000 formats=[train,arrow]

  source               output folder or URL of a job
  output               folder or URL for the new shards
  write.*              formats and other settings of the files, as in the job
  ray.*, report.*      as in the job; ray.runner=local: processes of this machine
  overwrite            true: discard other shards in `output`

{EXIT_CODES}
3 done, but some shards failed: NEW/_failed/ has their errors, and the same command tries them again.
"""


@command("finished shards are kept; run the same command again to resume")
def main(arguments: Sequence[str]) -> int:
    """Run the command with these arguments; return the exit code, which `USAGE` explains."""
    if "-h" in arguments or "--help" in arguments:
        print_text(describe(USAGE, ReshardOptions, {}))
        return 0
    set_up_logging()
    from pipeline.derive.reshard import reshard  # imports torch, which takes seconds

    return FAILED_SHARDS if reshard(arguments) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
