"""Takedown in a bucket: the same bytes as on a disk, also after a kill."""

from pathlib import Path

import fsspec

from pipeline.commands import takedown
from schemas.files import JOURNAL_FOLDER
from tests.pipeline.commands.derive.outputs import LOCAL, killed_before_file, write_output
from tests.pipeline.jobs import hash_output


def run(output: str, path: Path) -> int:
    """Run the command on this machine; return its exit code."""
    return takedown.main([output, f"list={path}", *LOCAL])


def test_a_takedown_that_was_killed_in_a_bucket_ends_with_the_files_of_one_on_a_disk(
    server: str, tmp_path: Path
) -> None:
    fs = fsspec.filesystem("s3")
    fs.makedirs("takedown", exist_ok=True)
    write_output(tmp_path / "out")
    fs.put(f"{tmp_path}/out/", "takedown/out/", recursive=True)
    (tmp_path / "list.txt").write_text("img.example.org\n")
    assert run(str(tmp_path / "out"), tmp_path / "list.txt") == 0
    with killed_before_file(2):
        assert run("s3://takedown/out", tmp_path / "list.txt") == 130
    assert fs.ls(f"takedown/out/{JOURNAL_FOLDER}")
    assert run("s3://takedown/out", tmp_path / "list.txt") == 0
    fs.invalidate_cache()
    fs.get("takedown/out/", f"{tmp_path}/copy/", recursive=True)
    assert hash_output(tmp_path / "copy") == hash_output(tmp_path / "out")
    assert not (tmp_path / "copy" / JOURNAL_FOLDER).exists()
