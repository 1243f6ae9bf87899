"""Takedown in a bucket: the same bytes as on a disk, also after a kill."""

from pathlib import Path

import fsspec
import pytest

from pipeline.commands import takedown
from pipeline.output.commit import Staging
from schemas.files import JOURNAL_FOLDER
from tests.pipeline.commands.derive.outputs import write_output
from tests.pipeline.jobs import hash_output


def run(output: str, path: Path) -> int:
    """Run the command on this machine; return its exit code."""
    return takedown.main([output, f"list={path}", "ray.runner=local", "ray.cpu_workers=1"])


def test_a_takedown_that_was_killed_in_a_bucket_ends_with_the_files_of_one_on_a_disk(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = fsspec.filesystem("s3")
    fs.makedirs("takedown", exist_ok=True)
    write_output(tmp_path / "out")
    fs.put(f"{tmp_path}/out/", "takedown/out/", recursive=True)
    (tmp_path / "list.txt").write_text("img.example.org\n")
    assert run(str(tmp_path / "out"), tmp_path / "list.txt") == 0
    publish, calls = Staging.publish_file, list[str]()

    def killed(staging: Staging, relative: str) -> None:
        calls.append(relative)
        if len(calls) == 3:
            raise KeyboardInterrupt
        publish(staging, relative)

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "publish_file", killed)
        assert run("s3://takedown/out", tmp_path / "list.txt") == 130
    assert fs.ls(f"takedown/out/{JOURNAL_FOLDER}")
    assert run("s3://takedown/out", tmp_path / "list.txt") == 0
    fs.invalidate_cache()
    fs.get("takedown/out/", f"{tmp_path}/copy/", recursive=True)
    assert hash_output(tmp_path / "copy") == hash_output(tmp_path / "out")
    assert not (tmp_path / "copy" / JOURNAL_FOLDER).exists()
