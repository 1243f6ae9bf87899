"""The examples in docstrings run as written."""

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize("module", ["pipeline.read.plan", "pipeline.read.stage", "pipeline.download.stage"])
def test_the_examples_in_docstrings_give_the_output_shown(module: str) -> None:
    result = doctest.testmod(import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
