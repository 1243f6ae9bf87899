"""Run the trainer's demo: `python -m demo.train_demo --model hycoclip`, or `make train-demo MODEL=hycoclip`.

Generates pairs of the miniature world, runs the pipeline on them, trains a miniature model on the shards, plots its
curves, and prints its metrics beside chance level. All models share the shards. An interrupted run resumes.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo.train_demo_data import ROOT, DataConfig, make_data
from hypergrit_common.cli import BUG, EXIT_CODES, command
from hypergrit_common.config_help import print_text
from hypergrit_common.text import message_lines
from hypergrit_common.version import hypergrit_version
from trainer.evaluation.metrics import RELATION_NAMES as RELATIONS
from trainer.metrics.curves import write_curves
from trainer.models.config import Hyper3Config, TaxonomyConfig
from trainer.models.registry import DEFAULT, MODELS

JOBS = "jobs/train_demo"
HEAD = f"{JOBS}/head.yaml"
TOWER = "demo/weights/clip"
OUTPUT = ROOT / "out" / "train_demo"
LICENSE = "cc-by-sa-4.0"
"""License of the weights: that of OpenMoji, whose artwork the pictures show (demo/weights/MODEL_CARD.md)."""


@command("run the same command again to resume")
def main() -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], epilog=EXIT_CODES)
    parser.add_argument("--model", choices=tuple(MODELS), default=DEFAULT, help="model to train")
    parser.add_argument(
        "--out", type=Path, default=OUTPUT, help="folder of the outputs pairs/, shards/, concepts/ and MODEL/"
    )
    parser.add_argument("--rows", type=int, default=DataConfig.train_rows, help="number of training pairs")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="also save the model in half precision with its card to this folder"
    )
    parser.add_argument(
        "--few-steps",
        action="store_true",
        help="deviate from the papers of HyCoCLIP and PHyCLIP, to learn in fewer steps",
    )
    parser.add_argument("--fresh", action="store_true", help="delete an earlier run of this model first")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings of the trainer, such as optim.steps=100"
    )
    options = parser.parse_args()
    start = time.monotonic()
    folder = options.out.resolve()
    name = run_name(options.model, options.few_steps)
    output = folder / name
    if options.fresh:
        shutil.rmtree(output, ignore_errors=True)
    try:
        make_data(folder, DataConfig(train_rows=options.rows))
        print_status(f"data in {folder}, {time.monotonic() - start:.0f} s")
        files = job_files(options.model, options.few_steps)
        data = features(folder) if HEAD in files else f"data.shards={folder / 'shards' / 'train'}"
        train(options.model, [*files, f"output={output}", data], folder, options.overrides)
        curves = write_curves(output)
        metrics = json.loads((output / "evaluation.json").read_text("utf-8"))
        if options.keep:
            words = ["python -m demo.train_demo --model", options.model, "--keep", options.keep, *options.overrides]
            keep(output, options.keep, " ".join(map(str, words)))
    except (RuntimeError, OSError) as error:  # its message may end with lines of a log
        print(message_lines(f"error: {error}"), file=sys.stderr)
        return BUG
    print_text(f"\n{format_table(name, metrics)}\n")
    print_text(f"finished in {time.monotonic() - start:.0f} s\ncurves: {curves}\nmodel: {output / 'model'}")
    return 0


def train(model: str, job: Sequence[str], folder: Path, overrides: list[str]) -> None:
    """Train a model on the shards in `folder`. Raises RuntimeError if it fails."""
    paths = [f"evaluation.shards={folder / 'shards' / 'held_out'}", f"evaluation.image_folders=[{folder / 'concepts'}]"]
    run_verb("train", [*job, f"model_name={model}", *paths, *overrides])


def features(folder: Path) -> str:
    """Write the features of the miniature CLIP, unless they are there; return the setting that names them."""
    output = folder / "features"
    shards = folder / "shards" / "train"
    run_verb("features", [f"shards={shards}", f"model={TOWER}", f"output={output}", "tokens=true"])
    return f"data.features={output}"


def run_verb(verb: str, arguments: Sequence[str]) -> None:
    """Run a verb in a subprocess. Raises RuntimeError if it fails."""
    print_status(f"hypergrit {verb} {' '.join(arguments)}")
    if subprocess.run([sys.executable, "-m", "hypergrit", verb, *arguments], cwd=ROOT, check=False).returncode != 0:
        raise RuntimeError(f"hypergrit {verb} failed; see its message above")


def job_files(model: str, few_steps: bool = False) -> list[str]:
    """Return the YAML files of a miniature model: a head with the loss of its paper or, for `few_steps`, towers from random
    weights with deviations that let them learn. Models of labels and of patches are always such towers.
    """
    config = MODELS[model].config
    if not few_steps and not issubclass(config, (Hyper3Config, TaxonomyConfig)):
        return ["jobs/train/heads.yaml", HEAD]
    overlays = {"min_radius": "few_steps", "box_candidates": "few_steps_boxes"}
    return [f"{JOBS}/base.yaml", *(f"{JOBS}/{name}.yaml" for key, name in overlays.items() if hasattr(config, key))]


def run_name(model: str, few_steps: bool = False) -> str:
    """The name of a miniature model. It bears the name of a paper only with its loss; `taxonomy` is none of a paper."""
    deviates = any("few_steps" in file for file in job_files(model)) and model != "taxonomy"
    return f"{model}-few-steps" if few_steps or deviates else model


def keep(run: Path, target: Path, command: str) -> None:
    """Save the trained model and its tower in half precision, with a card that names its command and paths of the repository.

    The paths are those of a run in the default folder, wherever this run was.
    """
    from trainer.inference.model import load_model

    def relative(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: relative(item) for key, item in value.items()}
        if isinstance(value, list):
            return [relative(item) for item in value]
        if isinstance(value, str):
            return value.replace(str(run.parent), str(OUTPUT.relative_to(ROOT))).replace(f"{ROOT}/", "")
        return value

    found = load_model(run, device="cpu")
    facts = {"command": command, "version": hypergrit_version()}
    found.record = facts | relative(found.record)
    found.save_pretrained(target, license=LICENSE, half=True, tower=True)


CHANCE = {"accuracy": "chance", "order": "chance", "auc": "chance", "ap": "chance"} | {
    f"recall@{k}": f"chance@{k}" for k in (1, 5, 10)
}
"""The name of a metric -> the name of its chance level."""


def format_table(model: str, metrics: dict[str, float]) -> str:
    """Format the metrics of an evaluation in percent, each beside its chance level.

    Metrics are named "TASK/PART/METRIC", such as "retrieval/text_to_image/recall@5".
    """
    rows: list[tuple[str, float, float]] = []
    for name, value in metrics.items():
        task, *parts, metric = name.split("/")
        chance = metrics.get("/".join([task, *parts, CHANCE.get(metric, "")]))
        if chance is not None:
            rows.append((describe(task, "/".join(parts), metric), value, chance))
    width = max((len(description) for description, _, _ in rows), default=0)
    lines = [f"{model:{width}}    model   chance"]
    lines += [f"{text:{width}}  {100 * value:5.1f} %  {100 * chance:5.1f} %" for text, value, chance in rows]
    return "\n".join(lines)


def describe(task: str, part: str, metric: str) -> str:
    """Return the description of a metric for the table."""
    if task == "zero_shot":
        return "zero-shot accuracy, pictures of one object"
    words = RELATIONS.get(part, part.replace("_", " "))
    return f"{words}: {'nearer the root' if metric == 'order' else metric}"


def print_status(text: str) -> None:
    print(f"train-demo: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
