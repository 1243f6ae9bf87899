"""Listing a local output while other processes write to it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.output.store import Store


def test_a_file_that_vanishes_during_a_listing_hides_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "arrow"
    folder.mkdir()
    for name in ("0.arrow", "1.arrow.tmp", "2.arrow"):
        (folder / name).write_text("abc")
    real = os.scandir

    @contextmanager
    def scandir(path: str) -> Iterator[list[Any]]:
        with real(path) as entries:
            listed = list(entries)
        (folder / "1.arrow.tmp").unlink()
        yield listed

    monkeypatch.setattr(os, "scandir", scandir)
    assert Store(str(tmp_path)).sizes("arrow") == {"0.arrow": 3, "2.arrow": 3}


def test_a_folder_that_does_not_exist_has_no_files(tmp_path: Path) -> None:
    assert Store(str(tmp_path)).sizes("arrow") == {}
