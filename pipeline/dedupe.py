"""Command line of dedupe: without the rows that repeat another row of any shard."""

import sys
from collections.abc import Sequence
from typing import Final

from common.cli import EXIT_CODES, FAILED_SHARDS, command, set_up_logging
from common.config_help import describe, print_text
from pipeline.derive.options import DedupeOptions

USAGE: Final = f"""\
usage: python -m pipeline.dedupe source=OUT output=NEW [by=[url,bytes,picture]] [radius=BITS] [key=value ...]

Writes the shards of an output without its duplicates. Rows are compared over all shards, and the row with the lowest
key stays. The others are dropped with a reason and the key of the row that stays. No model runs, and the source is left
alone. To compare several outputs, merge them first.

  python -m pipeline.dedupe source=out/both output=out/unique
  python -m pipeline.dedupe source=s3://data/both output=s3://data/unique by=[url,bytes,picture] radius=4

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
        print_text(describe(USAGE, DedupeOptions, {}))
        return 0
    set_up_logging()
    from pipeline.derive.dedupe import dedupe  # imports torch, which takes seconds

    return FAILED_SHARDS if dedupe(arguments) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
