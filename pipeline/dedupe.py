"""Command line of dedupe: without the rows that repeat another row of any shard."""

import sys
from typing import Final

from pipeline.derive.command import CODES, SHARD_KEYS, Run, derive_command
from pipeline.derive.options import DedupeOptions

USAGE: Final = f"""\
usage: python -m pipeline.dedupe source=OUT output=NEW [by=[url,bytes,picture]] [radius=BITS] [key=value ...]

Writes the shards of an output without its duplicates. Rows are compared over all shards, and the row with the lowest
key stays. The others are dropped with a reason and the key of the row that stays. No model runs, and the source is left
alone. To compare several outputs, merge them first.

  python -m pipeline.dedupe source=out/both output=out/unique
  python -m pipeline.dedupe source=s3://data/both output=s3://data/unique by=[url,bytes,picture] radius=4

  source               output folder or URL of a job
{SHARD_KEYS}

{CODES}"""


def load() -> Run:
    """Import the command."""
    from pipeline.derive.dedupe import dedupe

    return dedupe


main = derive_command(USAGE, load, DedupeOptions)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
