"""A small finished run that all tests of the report share."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.report.html import write_report
from pipeline.report.stats import build_stats
from tests.pipeline.report.make_output import make_tables, write_output

TRUTH = {
    "precision": 0.95,
    "recall": 0.8,
    "n_right": 8,
    "styles": {"held_out": {"precision": 0.9, "recall": 0.7, "n_right": 3}},
}


@pytest.fixture(scope="session")
def tables() -> list[pa.Table]:
    return make_tables(2, 12)


@pytest.fixture(scope="session")
def output(tables: list[pa.Table], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a run with stats.json and report.html. Tests must not change it."""
    folder = tmp_path_factory.mktemp("run")
    write_output(folder, tables)
    build_stats(str(folder), truth=TRUTH)
    write_report(str(folder))
    return folder
