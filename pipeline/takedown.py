"""Command line of takedown: remove rows that a list names from a finished output."""

import sys
from typing import Final

from common.cli import EXIT_CODES
from pipeline.derive.command import Run, derive_command
from pipeline.derive.options import TakedownOptions

USAGE: Final = f"""\
usage: python -m pipeline.takedown OUT list=FILE [dry_run=true] [key=value ...]

Removes rows from all formats of a finished output, in place, and writes the report again. A row stays in the ledger as
taken_down with its key and its place in the input; image, caption, phrases, boxes, URL and hash are removed. Shards
without such rows are left as they are. Give the list to the job too (read.takedown=FILE), which otherwise fetches the
rows again if it has to compute a shard again.

  python -m pipeline.takedown out/demo list=takedown.txt dry_run=true
  python -m pipeline.takedown s3://data/coyo list=s3://data/takedown.txt ray.address=auto

  OUT                  output folder or URL of a job
  list                 text file: one http(s) URL, host name (with its subdomains) or SHA-256 of received image bytes a
                       line; lines that begin with # are left out
  ray.*, report.*      as in the job; ray.runner=local: processes of this machine

{EXIT_CODES}
3 some shards failed and still have their rows: the log has their errors, and the same command tries them again. Until
  it ends with 0, other commands refuse the output.
"""


def load() -> Run:
    """Import the command."""
    from pipeline.derive.takedown import takedown

    return takedown


main = derive_command(USAGE, load, TakedownOptions)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
