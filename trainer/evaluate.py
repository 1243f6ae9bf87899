"""Evaluate a trained model: `python -m trainer.evaluate MODEL key=value ...`. `--help` explains results and keys."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.cli import EXIT_CODES, command, set_up_logging
from common.config import Keys, merge, read_layers
from common.config_help import describe, print_text
from common.devices import check_device, pick_device
from common.errors import UserError
from common.json_file import write_object
from trainer.evaluation.config import EvaluationConfig

USAGE = """\
usage: python -m trainer.evaluate MODEL [CONFIG.yaml ...] [key=value ...]

Evaluate a model: zero-shot classification of image folders, retrieval and entailment on held-out shards. MODEL is a
folder with config.json and model.safetensors, as a finished run writes it to OUTPUT/model, or a released .pth file
together with model_name=NAME. Later files and arguments override earlier ones. Results are printed in percent, one per
line; output=FILE.json also writes them to a file, as numbers from 0 to 1.

  python -m trainer.evaluate out/train_demo/hycoclip/model shards=out/train_demo/shards/held_out \\
      "image_folders=[out/train_demo/concepts]" 'prompts=["{}", "a {}", "the {}"]'

results:
  zero_shot/FOLDER/accuracy         share of the images of a class that are classified correctly, mean over classes
  zero_shot/FOLDER/accuracy_micro   share of all images that are classified correctly
  zero_shot/FOLDER/chance           expected accuracy of random guesses
  retrieval/text_to_image/recall@K  share of captions whose image is among the K best ranked ones; K is 1, 5 and 10
  retrieval/image_to_text/recall@K  share of images whose caption is among the K best ranked ones
  retrieval/.../chance@K            expected recall of a random ranking
  entailment/PAIR/satisfied         share of true pairs in which the general point entails the specific one: for models
                                    with entailment cones, the specific point lies in the cone of the general one.
                                    The aperture of the cone is scaled by eta, as in training
  entailment/PAIR/satisfied_plain   the same for the unscaled cone; printed if eta is not 1
  entailment/PAIR/chance            the same as satisfied, for mismatched pairs; chance_plain as satisfied_plain

  PAIR names the general and the specific point. CLIP has none of these results.
    text_image       caption and its image
    box_text_image   phrase and its box
    cross_image      box and its full image
    cross_text       phrase and its full caption
    syntax_edge      word and its head in the parse
    syntax_word      word by itself and the same word in its caption

"""
USAGE += f"{EXIT_CODES}\n"


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(EvaluationConfig):
    """Settings of the command."""

    # name of the model in a released .pth file; a folder written by the trainer contains the name
    model_name: str | None = None
    # JSON file for the results; empty: none
    output: str = ""
    # device: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_device(self)


@command()
def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code, as documented in --help."""
    if not arguments or "-h" in arguments or "--help" in arguments:
        print_text(describe(USAGE, EvaluateConfig, {}))
        return 0 if arguments else 2
    set_up_logging()
    model, config = parse(arguments)
    results = run(model, config)
    print_text("\n".join(f"{name:48}{100 * value:7.2f} %" for name, value in results.items()))
    if config.output:
        write(results, Path(config.output))
    return 0


def parse(arguments: Sequence[str]) -> tuple[str, EvaluateConfig]:
    """Return the path of the model and the configuration. Raises UserError for an argument that cannot be used."""
    path, *others = arguments
    if ("=" in path or path.endswith((".yaml", ".yml"))) and not Path(path).is_dir():
        raise UserError(f"the first argument is {path!r}; give the model first: a folder, or a released .pth file")
    return path, merge(EvaluateConfig, read_layers(others, Keys()))


def run(model: str, config: EvaluateConfig) -> dict[str, float]:
    """Load the model at the path `model` and evaluate it. Return the results by name, from 0 to 1.

    Raises UserError for a path without a usable model, and for a configuration that names no data.
    """
    if not config.shards and not config.image_folders:
        raise UserError("there is nothing to evaluate on; give shards=FOLDER, image_folders=[FOLDER], or both")
    from trainer.checkpoints.model import load_model  # both import torch, which --help does not need
    from trainer.evaluation.evaluate import Evaluation

    try:
        loaded = load_model(model, config.model_name)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    return Evaluation(config)(loaded.model, loaded.tokenizer, pick_device(config.device))


def write(results: dict[str, float], path: Path) -> None:
    """Write the results to a JSON file. Raises UserError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_object(results, path)
    except OSError as error:
        raise UserError(f"output={path} cannot be written: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
