"""Takedown in a bucket: the same bytes as on a disk, also after a kill."""

from pathlib import Path

import fsspec
import pytest

from pipeline.commands import explore, takedown, verify
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


@pytest.mark.rest
def test_a_summary_that_a_late_request_brings_back_is_found_and_written_again(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fs, name = fsspec.filesystem("s3", use_listings_cache=False), "takedown/late/_summaries/00000.json.zst"
    fs.makedirs("takedown", exist_ok=True)
    write_output(tmp_path / "out")
    fs.put(f"{tmp_path}/out/", "takedown/late/", recursive=True)
    assert explore.main(["s3://takedown/late", "report=true"]) == 0
    before = fs.cat_file(name)
    (tmp_path / "list.txt").write_text("img.example.org\n")
    assert run("s3://takedown/late", tmp_path / "list.txt") == 0
    assert verify.main(["s3://takedown/late", "processes=1"]) == 0
    after = fs.cat_file(name)
    fs.pipe_file(name, before)
    assert verify.main(["s3://takedown/late", "processes=1"]) == 1
    assert "_summaries/00000.json.zst: of an earlier version of the shard" in capsys.readouterr().out
    assert explore.main(["s3://takedown/late", "report=true"]) == 0
    assert fs.cat_file(name) == after != before
    assert verify.main(["s3://takedown/late", "processes=1"]) == 0
