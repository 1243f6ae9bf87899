"""The trainer's demo, from nothing to a table: `python -m demo.train_demo --model hycoclip`, or `make train-demo MODEL=...`.

Makes pairs of the miniature world, runs the pipeline on them, trains the model in miniature on the shards, draws its curves and
prints what it can do beside what chance would. The shards are made once for all models; a run that was cut off goes on.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from common.errors import UserError
from demo.train_demo_data import ROOT, DataConfig, make_data
from trainer.metrics.curves import write_curves
from trainer.models.registry import MODELS

JOBS = "jobs/train_demo"
OUTPUT = ROOT / "out" / "train_demo"


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=tuple(MODELS), default="hycoclip")
    parser.add_argument("--out", type=Path, default=OUTPUT, help="pairs/, shards/, concepts/ and MODEL/ are made in it")
    parser.add_argument("--rows", type=int, default=DataConfig.train_rows, help="rows of the training input")
    parser.add_argument("--fresh", action="store_true", help="train again, from the start")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="keys of the job, such as optim.steps=100")
    options = parser.parse_args()
    start = time.monotonic()
    folder = options.out.resolve()
    output = folder / options.model
    if options.fresh:
        shutil.rmtree(output, ignore_errors=True)
    try:
        make_data(folder, DataConfig(train_rows=options.rows))
        say(f"data in {folder}, {time.monotonic() - start:.0f} s")
        train(options.model, folder, options.overrides)
        curves = write_curves(output)
        figures = json.loads((output / "evaluation.json").read_text("utf-8"))
    except (RuntimeError, OSError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    print(f"\n{table(options.model, figures)}\n")
    print(f"{time.monotonic() - start:.0f} s in all\ncurves: {curves}\nmodel: {output / 'model'}")
    return 0


def train(model: str, folder: Path, overrides: list[str]) -> None:
    """The trainer on the model's job, as a user would call it. Raises RuntimeError when it fails."""
    places = [
        f"output={folder / model}",
        f"data.shards={folder / 'shards' / 'train'}",
        f"evaluation.shards={folder / 'shards' / 'held_out'}",
        f"evaluation.image_folders=[{folder / 'concepts'}]",
    ]
    command = [sys.executable, "-m", "trainer.train", *job_files(model), f"model_name={model}", *places, *overrides]
    say(f"python {' '.join(command[1:])}")
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        raise RuntimeError("training failed; its message is above")


def job_files(model: str) -> list[str]:
    """The YAML files of a model's miniature: the base, and the overlay for the settings that the model has."""
    config = MODELS[model].config
    if hasattr(config, "box_candidates"):
        return [f"{JOBS}/base.yaml", f"{JOBS}/boxes.yaml"]
    return [f"{JOBS}/base.yaml", *([f"{JOBS}/cones.yaml"] if hasattr(config, "min_radius") else [])]


def table(model: str, figures: dict[str, float]) -> str:
    """Figures of an evaluation in percent, each beside what chance gives."""
    rows: list[tuple[str, float, float]] = []
    for name, value in figures.items():
        head, *stem, figure = name.split("/")
        chance = figures.get("/".join([head, *stem, CHANCE.get(figure, "")]))
        if chance is not None:
            rows.append((described(head, "/".join(stem), figure), value, chance))
    width = max((len(row[0]) for row in rows), default=0)
    lines = [f"{model:{width}}    model   chance"]
    return "\n".join(
        lines + [f"{name:{width}}  {100 * value:5.1f} %  {100 * by_chance:5.1f} %" for name, value, by_chance in rows]
    )


CHANCE = {"accuracy": "chance", "satisfied": "chance", "satisfied_plain": "chance_plain"} | {
    f"recall@{k}": f"chance@{k}" for k in (1, 5, 10)
}
"""Figure -> the name of what chance gives for it."""

ENTAILMENTS = {
    "text_image": "caption entails its image",
    "box_text_image": "phrase entails its box",
    "cross_image": "box entails its image",
    "cross_text": "phrase entails its caption",
    "syntax_edge": "word entails its head",
    "syntax_word": "word alone entails itself in its caption",
}


def described(head: str, stem: str, figure: str) -> str:
    match head:
        case "zero_shot":
            return "zero-shot accuracy, pictures of one object"
        case "retrieval":
            return f"{stem.replace('_', ' ')}, {figure}"
        case _:
            return ENTAILMENTS.get(stem, stem) + (", plain cone" if figure.endswith("plain") else "")


def say(text: str) -> None:
    print(f"train-demo: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
