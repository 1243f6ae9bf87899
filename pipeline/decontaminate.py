"""Command line of decontaminate: drop rows whose images are in evaluation sets."""

import sys
from collections.abc import Sequence
from typing import Final

from common.cli import EXIT_CODES, FAILED_SHARDS, command, set_up_logging
from common.config_help import print_text

USAGE: Final = f"""\
usage: python -m pipeline.decontaminate source=OUT output=NEW against=SET [against=SET ...] [radius=6] [key=value ...]

Writes an output without the rows whose image is in an evaluation set: by URL, by SHA-256 of the bytes received, or by
a perceptual hash of 64 bits, which survives other sizes, qualities and brightnesses, but no crop, rotation or mirror
image. The source is left alone; the rows stay in the ledger as in_evaluation_set.

  python -m pipeline.decontaminate source=out/demo output=out/clean against=data/coco/val2017 against=urls.txt

Arguments:
  source               output folder or URL of a job; it needs arrow/, and grit/ or write.image_bytes=true
  output               folder or URL for the new shards
  against              folder of images (with its subfolders), or a text file with a URL, a SHA-256 or a perceptual hash
                       (16 hex digits) a line; may be given several times
  radius               number of bits, 0 to 16, in which the perceptual hashes of the same image may differ
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
    from pipeline.derive.decontaminate import decontaminate  # imports torch, which takes seconds

    return FAILED_SHARDS if decontaminate(arguments) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
