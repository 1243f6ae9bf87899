"""Only temporary folders that this package has made are removed from TMPDIR."""

import os
import tempfile
from pathlib import Path

from pipeline.output.store import remove_abandoned_folders, temporary_folder_prefix
from tests.pipeline.output.test_lease import dead_process


def make_folder(parent: Path, name: str, age_s: float = 0) -> str:
    (parent / name).mkdir()
    (parent / name / "file").write_text("precious")
    os.utime(parent / name, (0, 0) if age_s else None)
    return name


def test_folders_of_others_are_kept_and_those_of_dead_processes_removed(tmp_path: Path) -> None:
    dead, other = dead_process(), "0" * 8
    mine = Path(tempfile.mkdtemp(prefix=temporary_folder_prefix(), dir=tmp_path)).name
    kept = {
        mine,
        *(make_folder(tmp_path, name, age_s=7200) for name in ("hypergrit-data", "hypergrit-main", "hypergrit-0")),
        *(make_folder(tmp_path, name, age_s=7200) for name in (f"hypergrit-{dead}", f"hypergrit-{dead}.data")),
        make_folder(tmp_path, f"hypergrit-{other}-1-1.abcdefgh"),
    }
    make_folder(tmp_path, f"hypergrit-{dead}.abcdefgh")
    make_folder(tmp_path, f"hypergrit-{other}-1-2.abcdefgh", age_s=7200)
    remove_abandoned_folders(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == kept
