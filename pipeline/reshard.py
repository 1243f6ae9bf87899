"""Command line of reshard: other numbers of samples per shard, and another order."""

import sys
from typing import Final

from pipeline.derive.command import CODES, SHARD_KEYS, Run, derive_command
from pipeline.derive.options import ReshardOptions

USAGE: Final = f"""\
usage: python -m pipeline.reshard source=OUT output=NEW samples_per_shard=N [key=value ...]

Divides the rows of an output into shards with N samples each, shuffled across shards by a seed. Rows keep their keys.
Dropped rows stay in the ledger, spread evenly over the shards. No model runs, and the source is left alone.

  python -m pipeline.reshard source=out/coyo output=out/shuffled samples_per_shard=10000 seed=1
  python -m pipeline.reshard source=s3://data/coyo output=s3://data/train samples_per_shard=5000 formats=[train,arrow]

  source               output folder or URL of a job
{SHARD_KEYS}

{CODES}"""


def load() -> Run:
    """Import the command."""
    from pipeline.derive.reshard import reshard

    return reshard


main = derive_command(USAGE, load, ReshardOptions)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
