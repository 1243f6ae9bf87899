"""Measure a trained model: `python -m trainer.evaluate MODEL key=value ...`

MODEL is a folder with config.json and model.safetensors, as a finished run leaves them in OUTPUT/model, or a released .pth file,
with model_name=NAME. Prints one figure a line, in percent, and writes nothing but `output=FILE.json`, if it is given.

    python -m trainer.evaluate out/train_demo/hycoclip/model shards=out/train_demo/shards/held_out \\
        "image_folders=[out/train_demo/concepts]" 'prompts=["{}", "a {}", "the {}"]'
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.config import Keys, merge, read_layers
from common.config_help import describe, print_text
from common.devices import check_device, pick_device
from common.errors import UserError
from common.json_file import write_object
from trainer.checkpoints.model import load_model
from trainer.evaluation.config import EvaluationConfig
from trainer.evaluation.evaluate import Evaluation


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(EvaluationConfig):
    # model of a released .pth file, which does not name it; a folder written by the trainer does
    model_name: str | None = None
    # JSON file for the results; empty: none
    output: str = ""
    # device: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_device(self)


def main(arguments: Sequence[str]) -> int:
    """Command line; returns the exit code."""
    if not arguments or "-h" in arguments or "--help" in arguments:
        print_text(describe(__doc__ or "", EvaluateConfig, {}))
        return 0 if arguments else 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    try:
        config: EvaluateConfig = merge(EvaluateConfig, read_layers(arguments[1:], Keys()))
        figures = run(arguments[0], config)
        for name, value in figures.items():
            print(f"{name:48}{100 * value:7.2f} %")
        if config.output:
            write(figures, Path(config.output))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(folder: str, config: EvaluateConfig) -> dict[str, float]:
    """Raises UserError for a place that holds no model, and for a configuration with nothing to measure."""
    if not config.shards and not config.image_folders:
        raise UserError("nothing to measure: give shards=FOLDER, image_folders=[FOLDER], or both")
    try:
        loaded = load_model(folder, config.model_name)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    return Evaluation(config)(loaded.model, loaded.tokenizer, pick_device(config.device))


def write(figures: dict[str, float], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_object(figures, path)
    except OSError as error:
        raise UserError(f"output={path} cannot be written: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
