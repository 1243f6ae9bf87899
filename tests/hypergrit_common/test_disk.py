"""Atomic writes."""

from pathlib import Path

import pytest

from hypergrit_common.disk import atomic_write


def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), atomic_write(path) as draft:
        draft.write_text("half of it, \ud800", encoding="utf-8")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with atomic_write(path) as draft:
        draft.write_text("new")
    assert path.read_text() == "new"
