"""Command line of retry: try rows of a finished output again whose download failed for a reason that can pass."""

import sys
from typing import Final

from common.cli import EXIT_CODES
from pipeline.derive.command import Run, derive_command
from pipeline.retry.options import RetryOptions

USAGE: Final = f"""\
usage: python -m pipeline.retry OUT [reasons=[...]] [key=value ...]

Tries rows again that a finished job dropped for a reason that can pass. The results are new shards beside the old ones,
which are not changed; a row counts with its last result, in the report too. Each run is one attempt. The settings are
those of the job; the input files must still be there.

  python -m pipeline.retry out/demo
  python -m pipeline.retry s3://data/coyo "reasons=[timeout,429,5xx]" download.timeout_s=60 ray.address=auto

  OUT                  output folder or URL of a job; it needs arrow/
  download.*, ray.*, report.* and other settings marked [runtime]: as in the job, for this attempt only
                       (python pipeline/grit.py --help explains them)

{EXIT_CODES}
3 done, but some shards failed: the log has their errors, and the same command tries them again.
"""


def load() -> Run:
    """Import the command."""
    from pipeline.retry.run import retry

    return retry


main = derive_command(USAGE, load, RetryOptions)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
