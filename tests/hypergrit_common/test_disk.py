"""Atomic writes."""

import subprocess
import sys
from pathlib import Path

import pytest

from hypergrit_common import disk
from hypergrit_common.disk import atomic_write, temporary_name


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


def test_a_link_with_the_name_of_a_temporary_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "page.html.tmp").symlink_to(tmp_path / "victim")
    (tmp_path / "page.html").symlink_to(tmp_path / "victim")
    with atomic_write(tmp_path / "page.html") as draft:
        assert draft.exists()
        draft.write_text("new")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "page.html").is_symlink()


def test_a_name_that_is_taken_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "temporary_name", lambda path: f"{path}.tmp")
    (tmp_path / "page.tmp").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError), atomic_write(tmp_path / "page"):
        pass
    assert not (tmp_path / "nowhere").exists()


def test_the_lock_of_a_file_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match="symbolic link"), disk.locked(str(tmp_path / "lock")):
        pass
    assert not (tmp_path / "nowhere").exists()


def test_what_a_killed_process_was_writing_is_removed_by_the_next_write(tmp_path: Path) -> None:
    code = f"from hypergrit_common.disk import temporary_name as n; print(n({str(tmp_path / 'a')!r}))"
    dead = Path(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    dead.write_text("half")
    folder = Path(f"{tmp_path / '.export'}{dead.name[1:]}")
    folder.mkdir()
    live, others = Path(temporary_name(str(tmp_path / "a"))), tmp_path / "draft.tmp"
    live.write_text("half")
    others.write_text("of somebody else")
    with atomic_write(tmp_path / "b") as draft:
        draft.write_text("new")
    assert {*tmp_path.iterdir()} == {live, others, tmp_path / "b"}
