"""The verb `export`: of an output of the pipeline (OUTPUT output=FOLDER ...), or of a model (MODEL FOLDER ...)."""

from collections.abc import Sequence
from importlib import import_module


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    is_model = "format=onnx" in arguments or sum("=" not in item and item[:1] != "-" for item in arguments) > 1
    return int(import_module("trainer.inference.export" if is_model else "pipeline.commands.export").main(arguments))
