"""A small finished run with known boxes, which the tests of the quality commands share."""

import json
from pathlib import Path

import pytest

from demo.world.sprites import STYLES, Style
from tests.pipeline.report.make_output import make_row, make_tables, write_output


@pytest.fixture(scope="session")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output folder of a run over 24 scenes in two shards. Tests must not change it."""
    return write_output(tmp_path_factory.mktemp("run"), make_tables(2, 12))


@pytest.fixture(scope="session")
def phrases_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Known boxes of all scenes as phrases, by the file names of the URLs."""
    path = tmp_path_factory.mktemp("known") / "truth.json"
    truths = {f"{number}.jpg": make_row(number, style)[1] for number, style in scenes()}
    path.write_text(json.dumps({name: truth.to_json() for name, truth in truths.items()}))
    return path


def scenes() -> list[tuple[int, Style]]:
    """Return number and style of each scene of the run."""
    return [(first + i, STYLES[i % len(STYLES)]) for first in (0, 12) for i in range(12)]
