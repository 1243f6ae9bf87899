"""Command line of decontaminate: drop rows whose images are in evaluation sets."""

import sys
from typing import Final

from pipeline.derive.command import CODES, JOB_KEYS, OUTPUT_KEYS, Run, derive_command
from pipeline.derive.options import DecontaminateOptions

USAGE: Final = f"""\
usage: python -m pipeline.decontaminate source=OUT output=NEW against=SET [against=SET ...] [radius=6] [key=value ...]

Writes an output without the rows whose image is in an evaluation set: by URL, by SHA-256 of the bytes received, or by
a perceptual hash of 64 bits, which survives other sizes, qualities and brightnesses, but no crop, rotation or mirror
image. The source is left alone; the rows stay in the ledger as in_evaluation_set.

  python -m pipeline.decontaminate source=out/demo output=out/clean against=data/coco/val2017 against=urls.txt

  source               output folder or URL of a job; it needs arrow/, and grit/ or write.image_bytes=true
{OUTPUT_KEYS}
  against              folder of images (with its subfolders), or a text file with a URL, a SHA-256 or a perceptual hash
                       (16 hex digits) a line; may be given several times
{JOB_KEYS}

{CODES}"""


def load() -> Run:
    """Import the command."""
    from pipeline.derive.decontaminate import decontaminate

    return decontaminate


main = derive_command(USAGE, load, DecontaminateOptions)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
