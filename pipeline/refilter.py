"""Command line of refilter: other thresholds and formats for a finished output, without a GPU."""

import sys
from typing import Final

from pipeline.derive.command import CODES, JOB_KEYS, OUTPUT_KEYS, Run, derive_command
from pipeline.derive.options import DeriveOptions

USAGE: Final = f"""\
usage: python -m pipeline.refilter source=OUT output=NEW [key=value ...]

Writes the shards that the job would have written with other thresholds or formats, from the rows, boxes and scores of a
finished output. No model runs, and the source is left alone. Thresholds can be raised. They can be lowered if the job
ran with score.keep_all=true.

  python -m pipeline.refilter source=out/demo output=out/strict score.min_score=0.8 score.min_side_px=48
  python -m pipeline.refilter source=s3://data/coyo output=s3://data/train formats=[train] ray.address=auto

Keys (python pipeline/grit.py --help explains them):
  source               output folder or URL of a job; it needs arrow/, and grit/ or write.image_bytes=true
{OUTPUT_KEYS}
  score.min_score, score.min_clip_score, score.min_side_px, score.size_rule, score.keep_all
  write.formats, write.image_bytes, write.ref_exps, write.jpeg_quality, write.strip_url_queries
{JOB_KEYS}

{CODES}"""


def load() -> Run:
    """Import the command."""
    from pipeline.derive.refilter import refilter

    return refilter


main = derive_command(USAGE, load, DeriveOptions)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
