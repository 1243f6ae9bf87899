"""Command line of retry: try rows of a finished output again whose download failed for a reason that can pass."""

import sys
from collections.abc import Sequence
from typing import Final

from common.cli import EXIT_CODES, FAILED_SHARDS, command, set_up_logging
from common.config_help import print_text
from common.errors import UserError
from schemas.status import PASSING

USAGE: Final = f"""\
usage: python -m pipeline.retry OUT [reasons=[...]] [key=value ...]

Tries rows again that a finished job dropped for a reason that can pass. The results are new shards beside the old ones,
which are not changed; a row counts with its last result, in the report too. Each run is one attempt. The settings are
those of the job; the input files must still be there.

  python -m pipeline.retry out/demo
  python -m pipeline.retry s3://data/coyo "reasons=[timeout,429,5xx]" download.timeout_s=60 ray.address=auto

Arguments:
  OUT                  output folder or URL of a job; it needs arrow/
  reasons              drop reasons of the download, and HTTP statuses (429, 5xx)
                       (default: {",".join(PASSING)})
  new_attempt          true: begin another attempt although the last one has not finished
  download.*, ray.*, report.* and other settings marked [runtime]: as in the job, for this attempt only
                       (python pipeline/grit.py --help explains them)

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
        raise UserError(f"{len(outputs)} outputs are given; give one: python -m pipeline.retry OUT")
    set_up_logging()
    from pipeline.retry.run import retry  # imports torch, which takes seconds

    return FAILED_SHARDS if retry(outputs[0], [item for item in arguments if "=" in item]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
