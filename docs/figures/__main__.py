"""Draw the pictures of README.md and docs/ from the demo's output."""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from docs.figures import architecture, disk, overview, pages, performance
from docs.figures.paths import DEMO, DOCS, ROOT, TRAINING, TRUTH
from hypergrit_common.cli import BUG, EXIT_CODES, command
from hypergrit_common.config_help import print_text

MAKE_DEMO: Final = ("-m", "demo.run")
MAKE_TRAINING: Final = ("-m", "demo.train_demo", "--model", "hycoclip")


def calibration(target: Path) -> None:
    """Draw precision over recall of the demo's boxes."""
    run("-m", "hypergrit", "quality", str(DEMO), f"known={TRUTH}", f"plot={target}")


def curves(target: Path) -> None:
    """Draw the metrics of the demo's training."""
    from trainer.metrics.curves import write_curves

    target.write_bytes(write_curves(TRAINING).read_bytes())


def heads(target: Path) -> None:
    """Draw how far the images and texts of the demo's head are from the root."""
    with tempfile.TemporaryDirectory() as folder:
        shards = TRAINING.parent / "shards" / "held_out"
        run("-m", "hypergrit", "evaluate", str(TRAINING), f"shards={shards}", f"pictures={folder}")
        target.write_bytes((Path(folder) / f"{TRAINING.name}.png").read_bytes())


class Figure(NamedTuple):
    """A function that draws a picture, the arguments of Python that make what it shows, unless that exists, and the end
    of its name."""

    draw: Callable[[Path], None]
    needs: tuple[str, ...] = ()
    ending: str = "png"


FIGURES: Final = {
    "overview": Figure(overview.draw),
    "architecture": Figure(architecture.draw),
    "performance": Figure(performance.draw),
    "disk": Figure(disk.draw),
    "photographs": Figure(pages.photographs, ending="jpg"),
    "report": Figure(pages.report, MAKE_DEMO),
    "explorer": Figure(pages.explorer, MAKE_DEMO),
    "calibration": Figure(calibration, MAKE_DEMO),
    "curves": Figure(curves, MAKE_TRAINING),
    "heads": Figure(heads, MAKE_TRAINING),
}


def run(*arguments: str) -> None:
    """Run Python in a child process. Raises RuntimeError if it fails."""
    if subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False).returncode:
        raise RuntimeError(f"python {' '.join(arguments)} failed; see its message above")


@command("figures that are drawn are kept")
def main() -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.figures",
        description=f"{__doc__} Runs the demo and its training first, which reuse what is finished.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"pictures, by default all: {', '.join(FIGURES)}")
    parser.add_argument("--to", type=Path, default=DOCS, help="folder of the pictures (default: docs)")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - FIGURES.keys()):
        parser.error(f"no picture is named {unknown[0]!r}; there are {', '.join(FIGURES)}")
    names = options.names or list(FIGURES)
    options.to.mkdir(parents=True, exist_ok=True)
    try:
        for needs in dict.fromkeys(FIGURES[name].needs for name in names):
            if needs:
                run(*needs)
        for name in names:
            target = options.to.resolve() / f"{name}.{FIGURES[name].ending}"
            FIGURES[name].draw(target)
            print_text(str(target))
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return BUG
    return 0


if __name__ == "__main__":
    sys.exit(main())
