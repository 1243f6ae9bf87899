"""Files of benchmarks, written by the tests."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, object], Path]:
    """Write a file below the data folder: text as it is, other values as JSON. Returns its path."""

    def write_file(name: str, content: object = "image") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write_file
