"""What `--help` says of the main job."""

from common.config_help import describe
from pipeline.config import KEYS, PipelineConfig

USAGE = """\
usage: python pipeline/grit.py [CONFIG.yaml ...] [key=value ...]

Turns image-text pairs into grounded training shards: downloads the images, finds the phrases of each caption, grounds them to boxes,
filters the boxes, writes shards and a report. Finished shards are skipped, so the same command goes on where a killed job stopped.

  python pipeline/grit.py jobs/demo.yaml input=pairs.parquet output=out/mine limit=1000
  ray job submit --working-dir . -- python pipeline/grit.py jobs/demo.yaml input=/data/pairs output=/data/shards

Exit code: 0 done, 1 a bug or a failed machine, 2 something you can mend (the message says what), 130 interrupted.
"""


def help_text() -> str:
    """The whole of --help."""
    return describe(USAGE, PipelineConfig, KEYS.short)
