"""The verb `export`: of an output of the pipeline, which has `key=value` arguments, or of a model, which has none."""

from collections.abc import Sequence
from importlib import import_module


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    is_model = bool(arguments) and not any("=" in item or item in ("-h", "--help") for item in arguments)
    return int(import_module("trainer.export" if is_model else "pipeline.commands.export").main(arguments))
