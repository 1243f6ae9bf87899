"""Command line of refilter: other thresholds and formats for a finished output, without a GPU."""

import sys
from collections.abc import Sequence
from typing import Final

from common.cli import EXIT_CODES, FAILED_SHARDS, command, set_up_logging
from common.config_help import print_text

USAGE: Final = f"""\
usage: python -m pipeline.refilter source=OUT output=NEW [key=value ...]

Writes the shards that the job would have written with other thresholds or formats, from the rows, boxes and scores of a
finished output. No model runs, and the source is left alone. Thresholds can be raised. They can be lowered if the job
ran with score.keep_all=true.

  python -m pipeline.refilter source=out/demo output=out/strict score.min_score=0.8 score.min_side_px=48
  python -m pipeline.refilter source=s3://data/coyo output=s3://data/train formats=[train] ray.address=auto

Keys (python pipeline/grit.py --help explains them):
  source               output folder or URL of a job; it needs arrow/, and grit/ or write.image_bytes=true
  output               folder or URL for the new shards
  score.min_score, score.min_clip_score, score.min_side_px, score.size_rule, score.keep_all
  write.formats, write.image_bytes, write.ref_exps, write.jpeg_quality, write.strip_url_queries
  ray.*, report.*      as in the job; ray.runner=local: processes of this machine
  overwrite            true: discard other shards in `output`

{EXIT_CODES}
3 done, but some shards failed: NEW/_failed/ has their errors, and the same command tries them again.
"""


@command("finished shards are kept; run the same command again to resume")
def main(arguments: Sequence[str]) -> int:
    """Run the command with these arguments; return the exit code, which `USAGE` explains."""
    if "-h" in arguments or "--help" in arguments:
        print_text(USAGE)
        return 0
    set_up_logging()
    from pipeline.derive.refilter import refilter  # imports torch, which takes seconds

    return FAILED_SHARDS if refilter(arguments) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
