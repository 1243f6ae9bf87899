"""The examples in the docstrings of the stages and of the report run and print what they show."""

import doctest
from importlib import import_module

import pytest

MODULES = [
    "pipeline.captions.stage",
    "pipeline.parse.stage",
    "pipeline.ground.stage",
    "pipeline.score.stage",
    "pipeline.score.thresholds",
    "pipeline.write.stage",
    "pipeline.report.stats",
    "pipeline.report.html",
    "pipeline.report.summary",
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_print_what_they_show(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
