#!/usr/bin/env python3
"""Command line of the main job: image-text pairs to grounded training shards and a report.

`hypergrit run --help` lists the most used keys, `--help all` all of them.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # when started as a file from another folder
    sys.path.insert(0, str(ROOT))

try:
    from hypergrit_common.cli import EXIT_CODES, INCOMPLETE, command, set_up_logging
    from hypergrit_common.config import command_line, merge_some, read_layers, saved_layers
    from hypergrit_common.config_help import describe, help_topic, list_keys, print_text
    from hypergrit_common.errors import UserError
    from hypergrit_common.paths import set_variables
    from pipeline.config import KEYS, Messages, config_kind, load_config
except ModuleNotFoundError as error:  # an interpreter of another environment
    if __name__ != "__main__":
        raise
    print(f"error: {sys.executable} lacks the packages of HyperGRIT ({error}); run `make install`, and start "
          f"{ROOT}/.venv/bin/python {ROOT}/pipeline/grit.py", file=sys.stderr)  # fmt: skip
    sys.exit(2)

USAGE: Final = f"""\
usage: hypergrit run [CONFIG.yaml ...] [key=value ...]

Turns image-text pairs into grounded training shards: downloads the images, parses the captions, grounds their phrases
to boxes, filters the boxes, and writes shards and a report. Finished shards are skipped: to resume a job that was
stopped, run the same command again.

  hypergrit run input=pairs.parquet output=out/mine limit=1000 \\
      grounder=iSEE-Laboratory/llmdet_tiny scorer=openai/clip-vit-base-patch32
  hypergrit run input=pairs.parquet output=out/mine ray.runner=local      without Ray
  hypergrit run jobs/pipeline/coyo.yaml input=pairs.parquet output=out/mine dry_run=true
  hypergrit run retry=true output=out/mine         try rows again whose download failed for a while (--help retry=true)
  ray job submit --working-dir . -- pipeline/grit.py jobs/pipeline/coyo.yaml input=/data/coyo output=/data/shards

The default models are miniatures that know only the drawn scenes of the demo; docs/models.md lists models for photographs.

{EXIT_CODES}
3 done, but some shards failed: OUTPUT/_failed/ has their errors, and the next run tries them again; or input files
  are damaged, and only the rows before the damage were read. 4 done, but no row was kept; the report shows why.
"""


MAIN: Final = (
    "input", "output", "rows_per_shard", "limit", "ground.grounder", "score.scorer", "write.formats", "dry_run", "overwrite",
    "stages", "read.caption_column", "read.where", "download.concurrency", "download.resize.size", "parse.style",
    "score.min_score", "score.min_clip_score", "ray.runner", "ray.address", "ray.gpus_per_model_worker",
)  # fmt: skip
"""The keys that `--help` lists."""


def help_text(arguments: Sequence[str] = ()) -> str:
    """The text of `--help`, `--help all` or `--help KEY`, with the settings of the stages that the arguments name."""
    named = [item for item in arguments if item.startswith("stages=")]
    kind = config_kind(read_layers(named, KEYS))
    main = (*MAIN, *(key.name for stage in kind.further for key in list_keys(stage.Config, f"{stage.name}.")))
    return describe(USAGE, kind, KEYS.short, main=main, topic=help_topic(arguments) or "")


@dataclass(frozen=True, kw_only=True)
class Mode(Messages):
    """The settings that decide what the command does, before the configuration of the job is read."""

    retry: bool = False
    dry_run: bool | int = False

    def __post_init__(self) -> None:
        if self.retry and self.dry_run:
            raise UserError(
                "retry and dry_run are both given, and exclude each other: a dry run predicts a job; give one"
            )


@command("finished shards are kept; run the same command again to resume")
def main(arguments: Sequence[str]) -> int:
    """Run the job with these command-line arguments; return the exit code, which `USAGE` explains."""
    topic = help_topic(arguments)
    given = arguments if topic is None else [item for item in arguments if item.startswith("retry=")]
    mode: Mode = merge_some(Mode, saved_layers(read_layers(given, KEYS), given)[1])
    set_variables(mode.ray.variables())
    if mode.retry:
        set_up_logging(mode.level, is_json=mode.log.format == "json")
        from pipeline.commands.retry import main as retry

        return retry(arguments)
    if topic is not None:
        print_text(help_text(arguments))
        return 0
    set_up_logging(mode.level, is_json=mode.log.format == "json")
    config = load_config(arguments)
    # What follows imports torch and spaCy, which takes seconds; --help and wrong keys do not need them.
    if config.dry_run:
        from pipeline.commands.dry_run import dry_run

        return INCOMPLETE if dry_run(config) else 0
    from pipeline.run.job import run_job

    return run_job(config, command_line("hypergrit run", arguments, KEYS)).exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
