"""Rebuild the papers' tables in miniature: `python -m demo.paper --size small`, or `make paper SIZE=small`."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from demo.paper.plan import SIZES, VARIANTS
from demo.train_demo_data import ROOT
from hypergrit_common.cli import BUG, EXIT_CODES, command
from hypergrit_common.config_help import print_text
from hypergrit_common.processes import n_cpus
from hypergrit_common.text import message_lines

EPILOG = f"""\
sizes:
{chr(10).join(f"  {name:6} {size.about}" for name, size in SIZES.items())}

rows, for --rows:
{chr(10).join(f"  {key:26} {variant.title}" for key, variant in VARIANTS.items())}

outputs:
  OUT/index.html, paper.md  tables of all rows that have results, verdicts on the papers' claims, pictures
  OUT/results/              metrics and held-out items of each run, chosen rates and steps, figures of first seeds
  WORK/data/                scenes, shards, features, evaluation sets, scores on the validation split

Repeat the command after an interruption: finished parts are kept. A row and seed with a result is not trained again, so
that several machines can share a study: give each --work with a copy of data/ and other --rows, copy the files in results/
to one folder, and run the command there.
{EXIT_CODES}"""


@command("run the same command again to resume")
def main() -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(
        "python -m demo.paper",
        description="Write shards from scenes of the demo's world, cache the features of frozen towers, train heads with the "
        "papers' losses on them with several seeds, evaluate them, and write one page with the papers' tables in miniature.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", choices=tuple(SIZES), default="small", help="size of the study; default: small")
    parser.add_argument("--rows", nargs="+", choices=tuple(VARIANTS), metavar="ROW", help="rows to train, not all")
    parser.add_argument("--seeds", type=int, help="largest number of seeds to train")
    parser.add_argument("--jobs", type=int, help="trainings side by side, of one thread; default: one per CPU core")
    parser.add_argument("--out", type=Path, help="folder of the page and the results; default: out/paper/SIZE")
    parser.add_argument("--work", type=Path, help="folder of data, models and logs; default: out/paper/SIZE")
    options = parser.parse_args()
    for name in ("seeds", "jobs"):
        if (getattr(options, name) or 1) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; give 1 or more")
    size, default = SIZES[options.size], ROOT / "out" / "paper" / options.size
    trained = replace(size, rows=tuple(options.rows or size.rows), seeds=options.seeds or size.seeds)
    from demo.paper.page import write_page  # imports torch, which --help does not need
    from demo.paper.run import Study, run_study

    study = Study(
        size=trained, out=(options.out or default).resolve(), data=(options.work or default).resolve() / "data"
    )
    try:
        run_study(study, options.jobs or n_cpus())
        page = write_page(options.size, size, study.out)
    except (RuntimeError, OSError) as error:  # its message may end with lines of a log
        print(message_lines(f"error: {error}"), file=sys.stderr)
        return BUG
    print_text(f"page: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
