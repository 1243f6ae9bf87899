"""The examples in docstrings run as written."""

import doctest
from importlib import import_module

import pytest

MODULES = (
    "pipeline.read.plan",
    "pipeline.read.source",
    "pipeline.stages.download.stage",
    "pipeline.stages.captions",
    "pipeline.stages.parse.stage",
    "pipeline.stages.ground.stage",
    "pipeline.stages.score.stage",
    "pipeline.stages.score.filters",
    "pipeline.output.write.stage",
    "pipeline.report.stats",
    "pipeline.report.html",
    "pipeline.report.summary",
)


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_give_the_output_shown(module: str) -> None:
    result = doctest.testmod(import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
