"""Evaluate trained models: `hypergrit evaluate model=[MODEL] data=FOLDER ...`. `--help` explains both forms."""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from hypergrit_common.cli import EXIT_CODES, INCOMPLETE, command, set_up_logging
from hypergrit_common.config import Keys, Trusting, merge, read_layers
from hypergrit_common.config_help import ALL, describe_topic, help_topic, key_lines, list_keys, print_text
from hypergrit_common.devices import check_device, limit_threads, pick_device
from hypergrit_common.errors import NotFiniteError, UserError
from hypergrit_common.json_file import write_object
from trainer.evaluation.catalog import describe_tasks
from trainer.evaluation.held_out.config import HeldOutConfig
from trainer.evaluation.metrics import in_words
from trainer.evaluation.run.config import BenchmarkConfig

USAGE = """\
usage: hypergrit evaluate model=[MODEL,...] data=FOLDER output=FOLDER [tasks=[TASK,...]] [key=value ...]
       hypergrit evaluate MODEL [MODEL ...] [CONFIG.yaml ...] [key=value ...]

The first form evaluates models on the benchmarks of the papers, from their own files in data=FOLDER. A model is the
folder of a finished run, its folder model/, one of its checkpoints/, a folder of open_clip, or NAME:FILE.pth, a released
file with the name of its model. The second form evaluates models without benchmark files, side by side: zero-shot
classification of image folders, retrieval and entailment on held-out shards; pictures=FOLDER shows how far images and
texts are from the root. YAML files may hold the keys of either form. Later files and arguments override earlier ones.

  hypergrit evaluate model=[out/hycoclip] data=datasets/eval output=out/eval         all tasks whose files are there
  hypergrit evaluate "model=[out/hycoclip/model,meru:meru_vit_s.pth]" data=datasets/eval \\
      "tasks=[retrieval,sugarcrepe]" output=out/eval
  hypergrit evaluate out/hycoclip shards=out/held_out/train                          retrieval and entailment
  hypergrit evaluate out/train_demo/hycoclip/model shards=out/train_demo/shards/held_out \\
      "image_folders=[out/train_demo/concepts]" 'prompts=["{}", "a {}", "the {}"]'
  hypergrit evaluate hycoclip.pth model_name=hycoclip shards=out/held_out/train      a released checkpoint
  hypergrit evaluate out/mine out/hycoclip trust=[my_package.mine:Mine] shards=...   a class of your own beside another

Files that the first form writes to the output folder:
  index.html          all results on one page, with the published rows of the papers, figures and details
  summary.md          the tables in Markdown
  MODEL/TASK.json     metrics, chance levels, rules, numbers of examples used and skipped, checksums of the annotations,
                      and the number of images that appear in train_shards; or the reason why there is no result
  MODEL/TASK-*.png    figures
  models.json         path, name and hash of each model, or the reason why it could not be loaded
  cache/              features of images and texts. An interrupted evaluation resumes when the command is repeated;
                      results with the same model, options, annotations, images and training shards are kept if no
                      file was missing or unreadable

A data set that is missing or malformed is reported in one line, and the other tasks run. So is an unexpected error,
whose traceback is in MODEL/TASK-error.txt; the exit code is 1 then. Where features are not finite, there is no result, in
either form, and the exit code is 3. With
`python -m trainer.torchrun --nproc-per-node 8 -m trainer.evaluate ...`, several processes share the work.

tasks:
{tasks}

results of the second form; output=FILE.json also writes them to a file, as numbers from 0 to 1:
  zero_shot/FOLDER/accuracy         share of the images of a class that are classified correctly, mean over classes
                                    (0 for a class without images that is predicted)
  zero_shot/FOLDER/accuracy_micro   share of all images that are classified correctly
  zero_shot/FOLDER/chance           expected accuracy of random guesses
  zero_shot/FOLDER/unreadable       share of the files that are no usable images and left out, if there are some
  retrieval/text_to_image/recall@K  share of captions whose image is among the K best ranked ones; K is 1, 5 and 10
  retrieval/image_to_text/recall@K  share of images whose caption is among the K best ranked ones
  retrieval/.../chance@K            expected recall of a random ranking
  entailment/PAIR/order             share of true pairs whose general point is nearer the root than the specific one
  entailment/PAIR/auc               area under the ROC curve of true against mismatched pairs, ranked by the exterior
                                    angle minus the half-aperture of the cone
  entailment/PAIR/ap                average precision of the same ranking; mismatched pairs weigh as much as true ones
  entailment/PAIR/chance            chance level of the three: 0.5

  PAIR names the general and the specific point. CLIP has none of these results.
    text_image       caption and its image
    box_text_image   phrase and its box
    cross_image      box and its full image
    cross_text       phrase and its full caption
    syntax_edge      word and its head in the parse
    syntax_word      word by itself and the same word in its caption

"""
USAGE += f"""{EXIT_CODES}
3 the first form finished, but a model could not be loaded, a task named in `tasks` lacks its files, a task has
malformed files, or its images could not be compared with train_shards.
"""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(HeldOutConfig, Trusting):
    """Settings of the command."""

    # name of the model in released .pth files; a folder written by the trainer contains the name
    model_name: str | None = None
    # JSON file for the results, of several models by their names; empty: none
    output: str = ""
    # folder for MODEL.png, the distances of images, boxes, captions and phrases from the root; empty: none
    pictures: str = ""
    # device: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_device(self)


@command()
def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code, as documented in --help."""
    if (topic := help_topic(arguments or ["--help"])) is not None:
        print_text(help_text(topic))
        return 0 if arguments else 2
    set_up_logging()
    if is_benchmark(arguments):
        chosen: BenchmarkConfig = merge(BenchmarkConfig, read_layers(arguments, Keys()))
        if not os.path.isdir(chosen.data):
            raise UserError(f"data={chosen.data} is not a folder; give the folder with the files of the tasks")
        from trainer.evaluation.run.benchmarks import run_benchmarks  # imports torch, which takes seconds

        return run_benchmarks(chosen)
    models, config = parse(arguments)
    names = label(models)
    results, n_failed = dict[str, dict[str, float]](), 0
    for name, model in names.items():
        try:
            results[name] = run(model, config, name, len(names) == 1)
        except NotFiniteError as error:
            logging.getLogger(__name__).error("%s: %s", name, error)
            n_failed += 1
    if results:
        print_text(table(results))
    if results and config.output:
        write(results if len(names) > 1 else results[name], Path(config.output))
    return INCOMPLETE if n_failed else 0


def label(models: Sequence[str]) -> dict[str, str]:
    """A short name for each model: the last part of its path that is not `model`, or the path if two have the same."""
    short = [Path(model).parent.name if Path(model).name == "model" else Path(model).name for model in models]
    return dict(zip(short if len(set(short)) == len(models) else models, models, strict=True))


def table(results: Mapping[str, Mapping[str, float]]) -> str:
    """Return the results of each model as lines of a metric, its values and its chance level, in percent."""
    widths = {name: max(len(name) + 2, 10) for name in results}
    heads = [f"{name if len(results) > 1 else 'value':>{width}}" for name, width in widths.items()]
    lines = [f"{'metric':48}{''.join(heads)}{'chance':>9}"]
    for name in dict.fromkeys(name for found in results.values() for name in found):
        group, _, metric = name.rpartition("/")
        if metric.startswith("chance"):
            continue
        level = f"{group}/chance{metric[metric.find('@') :] if '@' in metric else ''}"
        chance = next((found[level] for found in results.values() if level in found), None)
        cells = [
            f"{100 * found[name]:{widths[model] - 2}.2f} %" if name in found else f"{'-':>{widths[model]}}"
            for model, found in results.items()
        ]
        lines.append(f"{in_words(name):48}{''.join(cells)}" + ("" if chance is None else f"{100 * chance:7.2f} %"))
    return "\n".join(lines)


def help_text(topic: str = "") -> str:
    """The text of --help: the usage with the tasks, then the keys of both forms, or those of a `topic`."""
    usage = USAGE.replace("{tasks}", describe_tasks())
    first, second = (list(list_keys(kind)) for kind in (BenchmarkConfig, EvaluateConfig))
    if topic not in ("", ALL):
        return describe_topic(topic, list(dict.fromkeys([*first, *second])), usage)
    return f"{usage}\n{key_lines(first, title='keys of the first form')}\n\n{key_lines(second, title='keys of the second form')}"


def is_benchmark(arguments: Sequence[str]) -> bool:
    """True for the form without a model as the first argument: `model`, `data` or `tasks` is a key."""
    if names_model(arguments[0]):
        return False
    return any(key in layer for layer, _ in read_layers(arguments, Keys()) for key in ("model", "data", "tasks"))


def names_model(argument: str) -> bool:
    """True for the path of a model: a folder, or anything but KEY=VALUE and a YAML file."""
    return os.path.isdir(argument) or not ("=" in argument or argument.endswith((".yaml", ".yml")))


def parse(arguments: Sequence[str]) -> tuple[list[str], EvaluateConfig]:
    """Return the paths of the models and the configuration. Raises UserError for an argument that cannot be used."""
    models = list(takewhile(names_model, arguments))
    if not models:
        raise UserError(
            f"the first argument is {arguments[0]!r}; give the model first: a folder, or a released .pth file"
        )
    return models, merge(EvaluateConfig, read_layers(arguments[len(models) :], Keys()))


def run(model: str, config: EvaluateConfig, name: str = "", is_alone: bool = True) -> dict[str, float]:
    """Load the model at the path `model` and evaluate it. Return the results by name, from 0 to 1.

    `name` is that of its picture, if pictures are written. If it is not alone, `config.model_name` counts for released
    files only. Raises UserError for a path without a usable model, and for a configuration that names no data.
    """
    if not config.shards and not config.image_folders:
        raise UserError("there is nothing to evaluate on; give shards=FOLDER, image_folders=[FOLDER], or both")
    from trainer.checkpoints.model import load_model  # these import torch, which --help does not need
    from trainer.evaluation.held_out.evaluate import Evaluation
    from trainer.evaluation.metrics.spaces import NAMES, quantity
    from trainer.evaluation.plots import draw_histograms

    try:
        is_named = not is_alone and Path(model).is_dir()
        loaded = load_model(model, None if is_named else config.model_name, trust=config.trust)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    distances: dict[str, Any] | None = {} if config.pictures else None
    device = pick_device(config.device)
    limit_threads(loaded.model, device)
    results = Evaluation(config)(loaded.model, loaded.tokenizer, device, distances=distances)
    if distances:
        groups = {NAMES[stream]: values.numpy() for stream, values in distances.items()}
        path = Path(config.pictures) / f"{name.replace('/', '-')}.png"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draw_histograms(groups, f"{name}: {quantity(loaded.model)}", path)
        except OSError as error:
            raise UserError(f"pictures={config.pictures} cannot be written: {error}") from error
    return results


def write(results: Mapping[str, Any], path: Path) -> None:
    """Write the results to a JSON file. Raises UserError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_object(results, path)
    except OSError as error:
        raise UserError(f"output={path} cannot be written: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
