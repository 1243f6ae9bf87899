"""Command line of merge: several outputs into one."""

import sys
from typing import Final

from pipeline.derive.command import CODES, SHARD_KEYS, Run, derive_command
from pipeline.derive.options import MergeOptions

USAGE: Final = f"""\
usage: python -m pipeline.merge source=A source=B ... output=NEW [key=value ...]

Writes the shards of several outputs into one, as if their inputs had been concatenated: indices of shards and keys of
rows are shifted by those of the outputs before, and stay unique. No model runs, and the sources are left alone. Sources
with other settings, models or versions are refused, and each difference is named.

  python -m pipeline.merge source=out/coyo source=out/laion output=out/both
  python -m pipeline.merge source=s3://data/a source=s3://data/b output=s3://data/both ray.address=auto

  source               output folder or URL of a job, given once for each
{SHARD_KEYS}

{CODES}"""


def load() -> Run:
    """Import the command."""
    from pipeline.derive.merge import merge_outputs

    return merge_outputs


main = derive_command(USAGE, load, MergeOptions)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
