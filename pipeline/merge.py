"""Command line of merge: several outputs into one."""

import sys
from collections.abc import Sequence
from typing import Final

from common.cli import EXIT_CODES, FAILED_SHARDS, command, set_up_logging
from common.config_help import describe, print_text
from pipeline.derive.options import MergeOptions

USAGE: Final = f"""\
usage: python -m pipeline.merge source=A source=B ... output=NEW [key=value ...]

Writes the shards of several outputs into one, as if their inputs had been concatenated: indices of shards and keys of
rows are shifted by those of the outputs before, and stay unique. No model runs, and the sources are left alone. Sources
with other settings, models or versions are refused, and each difference is named.

  python -m pipeline.merge source=out/coyo source=out/laion output=out/both
  python -m pipeline.merge source=s3://data/a source=s3://data/b output=s3://data/both ray.address=auto

  source               output folder or URL of a job, given once for each
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
        print_text(describe(USAGE, MergeOptions, {}))
        return 0
    set_up_logging()
    from pipeline.derive.merge import merge_outputs  # imports torch, which takes seconds

    return FAILED_SHARDS if merge_outputs(arguments) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
