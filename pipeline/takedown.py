"""Command line of takedown: remove rows that a list names from a finished output."""

import sys
from collections.abc import Sequence
from typing import Final

from common.cli import EXIT_CODES, FAILED_SHARDS, command, set_up_logging
from common.config_help import print_text
from common.errors import UserError

USAGE: Final = f"""\
usage: python -m pipeline.takedown OUT list=FILE [dry_run=true] [key=value ...]

Removes rows from all formats of a finished output, in place, and writes the report again. A row stays in the ledger as
taken_down with its key and its place in the input; image, caption, phrases, boxes, URL and hash are removed. Shards
without such rows are left as they are. Give the list to the job too (read.takedown=FILE), which otherwise fetches the
rows again if it has to compute a shard again.

  python -m pipeline.takedown out/demo list=takedown.txt dry_run=true
  python -m pipeline.takedown s3://data/coyo list=s3://data/takedown.txt ray.address=auto

Arguments:
  OUT                  output folder or URL of a job
  list                 text file: one http(s) URL, host name (with its subdomains) or SHA-256 of received image bytes a
                       line; lines that begin with # are left out
  dry_run              true: print the rows that would be removed, and change nothing
  ray.*, report.*      as in the job; ray.runner=local: processes of this machine

{EXIT_CODES}
3 done, but some shards failed: the log has their errors, and the same command tries them again.
"""


@command("finished shards are kept; run the same command again to resume")
def main(arguments: Sequence[str]) -> int:
    """Run the command with these arguments; return the exit code, which `USAGE` explains."""
    if "-h" in arguments or "--help" in arguments:
        print_text(USAGE)
        return 0
    outputs = [item for item in arguments if "=" not in item]
    if len(outputs) != 1:
        raise UserError(f"{len(outputs)} outputs are given; give one: python -m pipeline.takedown OUT list=FILE")
    set_up_logging()
    from pipeline.derive.takedown import takedown  # imports torch, which takes seconds

    return FAILED_SHARDS if takedown(outputs[0], [item for item in arguments if "=" in item]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
