"""Command line of the main job: image-text pairs to grounded training shards and a report.

`python pipeline/grit.py --help` lists all keys.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # when started as a file from another folder
    sys.path.insert(0, str(ROOT))

from common.cli import EXIT_CODES, FAILED_SHARDS, NOTHING_KEPT, command, set_up_logging  # noqa: E402
from common.config import command_line  # noqa: E402
from common.config_help import describe, print_text  # noqa: E402
from pipeline.config import KEYS, PipelineConfig, load_config  # noqa: E402

USAGE: Final = f"""\
usage: python pipeline/grit.py [CONFIG.yaml ...] [key=value ...]

Turns image-text pairs into grounded training shards: downloads the images, parses the captions, grounds their phrases
to boxes, filters the boxes, and writes shards and a report. Finished shards are skipped: to resume a job that was
stopped, run the same command again.

  python pipeline/grit.py input=pairs.parquet output=out/mine limit=1000 \\
      grounder=models/glip_t scorer=openai/clip-vit-base-patch32
  python pipeline/grit.py jobs/pipeline/coyo.yaml input=pairs.parquet output=out/mine dry_run=true
  ray job submit --working-dir . -- python pipeline/grit.py jobs/pipeline/coyo.yaml input=/data/coyo output=/data/shards

The default models are miniatures that know only the drawn scenes of the demo; docs/models.md lists models for photographs.

{EXIT_CODES}
3 done, but some shards failed: OUTPUT/_failed/ has their errors, and the next run tries them again; or input files
  are damaged, and only the rows before the damage were read. 4 done, but no row was kept; the report shows why.
"""


def help_text() -> str:
    """The complete text of `--help`."""
    return describe(USAGE, PipelineConfig, KEYS.short)


@command("finished shards are kept; run the same command again to resume")
def main(arguments: Sequence[str]) -> int:
    """Run the job with these command-line arguments; return the exit code, which `USAGE` explains."""
    if "-h" in arguments or "--help" in arguments:
        print_text(help_text())
        return 0
    config = load_config(arguments)
    set_up_logging(logging.WARNING if config.quiet else logging.INFO, is_json=config.log.format == "json")
    # What follows imports torch and spaCy, which takes seconds; --help and wrong keys do not need them.
    if config.dry_run:
        from pipeline.dry_run.run import dry_run

        return FAILED_SHARDS if dry_run(config) else 0
    from pipeline.job import run_job

    result = run_job(config, command_line("python pipeline/grit.py", arguments, KEYS))
    return FAILED_SHARDS if result.n_failures else 0 if result.n_kept else NOTHING_KEPT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
