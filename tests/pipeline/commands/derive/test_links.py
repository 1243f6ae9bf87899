"""Folders and files of an output that are links: what is behind them is not changed, but for a marked folder."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.files import MARK
from pipeline.commands import explore, rewrite, takedown, verify
from pipeline.output.lock import hold_lease
from pipeline.output.store import Store
from schemas.files import ANSWERS_FOLDER, FILES, OUTPUT_FOLDERS, ROLLUP_FOLDER
from tests.pipeline.commands.derive.outputs import LOCAL, kept, make_output, picture
from tests.pipeline.jobs import hash_output

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """An output; beside it `other`, which is made like it with fewer shards, and a list of its first row."""
    rows = [kept(picture(n), url=f"http://x/{n}") for n in range(2)]
    make_output(tmp_path / "mine", {0: rows[:1], 1: rows[1:]}, "write.formats=[arrow,grit,train]", rows_per_shard=1)
    make_output(tmp_path / "other", {0: rows[:1]}, "write.formats=[arrow,grit,train]", rows_per_shard=1)
    (tmp_path / "list.txt").write_text("http://x/0\n")
    return tmp_path / "mine"


def link(path: Path, target: Path) -> None:
    """Put a link in place of a folder."""
    shutil.rmtree(path, ignore_errors=True)
    target.mkdir(exist_ok=True)
    path.symlink_to(target)


def run(verb: str, output: Path) -> int:
    match verb:
        case "takedown":
            return takedown.main([str(output), f"list={output.parent / 'list.txt'}", *LOCAL])
        case "verify":
            return verify.main([str(output), "requeue=true", "processes=1"])
        case _:
            return explore.main([str(output), "report=true"])


@pytest.mark.parametrize("verb", ["takedown", "verify", "report"])
def test_a_folder_behind_a_link_into_another_output_is_refused_by_name(
    mine: Path, verb: str, capsys: Printed, caplog: pytest.LogCaptureFixture
) -> None:
    before, train = hash_output(mine), mine.parent / "other/train"
    link(train, mine / "train")
    assert run(verb, mine.parent / "other") == 2
    assert f"{train} is a link into the output {mine}" in "".join(capsys.readouterr()) + caplog.text
    assert hash_output(mine) == before


def test_every_folder_is_looked_at_before_the_lease_is_taken(mine: Path) -> None:
    other = mine.parent / "other"
    for folder in (*OUTPUT_FOLDERS, ROLLUP_FOLDER, ANSWERS_FOLDER):
        moved = shutil.move(other / folder, mine.parent / "kept") if (other / folder).exists() else None
        for target in (mine / folder, mine):
            link(other / folder, target)
            with pytest.raises(UserError, match=f"{folder} is a link into the output"), hold_lease(Store(str(other))):
                pass
            (other / folder).unlink()
        if moved:
            shutil.move(moved, other / folder)
    with hold_lease(Store(str(other))):
        pass


def test_links_within_a_folder_and_files_that_are_links_leave_what_they_name(mine: Path) -> None:
    before, other = hash_output(mine), mine.parent / "other"
    for name in ("train/00000.tar", "grit/00000.tar", "_manifests/00000.json", "arrow/00000.arrow"):
        (other / name).unlink()
        (other / name).symlink_to(mine / name)
    (other / "train/more").symlink_to(mine / "train")
    (other / "grit/00007.tar").symlink_to(mine / "grit/00001.tar")
    run("takedown", other)
    run("report", other)
    assert hash_output(mine) == before
    assert not (other / "train/00000.tar").is_symlink()


@pytest.mark.parametrize("folder", [*OUTPUT_FOLDERS, ROLLUP_FOLDER, ANSWERS_FOLDER])
def test_no_file_behind_a_link_to_a_bare_folder_is_changed(mine: Path, folder: str, capsys: Printed) -> None:
    theirs = mine.parent / "theirs"
    theirs.mkdir()
    for name in ("notes.md", "00000.tar", "00007.arrow", "00007.json", "00007.json.zst", "000000000000.json", "a.tmp"):
        (theirs / name).write_text("theirs")
        os.utime(theirs / name, (0, 0))
    before = hash_output(theirs)
    link(mine / folder, theirs)
    assert run("takedown", mine) == 2
    said = capsys.readouterr().err
    assert f"{folder} is a link to {theirs}, whose files this command could change or remove; put a folder" in said
    assert ("say so with" in said) == (folder in FILES)
    assert hash_output(theirs) == before


def test_a_folder_of_a_format_may_be_moved_to_another_disk_and_linked(mine: Path, capsys: Printed) -> None:
    disk = mine.parent / "a disk"
    shutil.move(mine / "train", disk)
    (mine / "train").symlink_to(disk)
    assert run("takedown", mine) == 2
    (command,) = [part for part in capsys.readouterr().err.split("`") if part.startswith("echo ")]
    subprocess.run(command, shell=True, check=True)
    assert run("takedown", mine) == 0
    assert run("verify", mine) == 0
    (disk / "copy.tar").touch()
    assert run("verify", mine) == 1
    assert "train/copy.tar: no file of the output" in capsys.readouterr().out


def test_an_empty_folder_behind_a_link_becomes_that_of_the_output_and_of_no_other(mine: Path, capsys: Printed) -> None:
    disk, new = mine.parent / "disk", mine.parent / "new"
    new.mkdir()
    for output in (new, mine.parent / "other"):
        link(output / "train", disk)
    assert rewrite.main([f"source={mine}", f"output={new}", *LOCAL]) == 0
    assert run("takedown", new) == 0
    assert run("verify", new) == 0
    before = hash_output(disk)
    assert run("takedown", mine.parent / "other") == 2
    assert "is a link to" in capsys.readouterr().err
    assert hash_output(disk) == before
    assert {path.name for path in disk.iterdir()} == {MARK, "00000.tar", "00001.tar"}


def test_unknown_links_are_named_and_not_followed(mine: Path, capsys: Printed) -> None:
    assert run("takedown", mine) == 0
    (mine / "x").symlink_to("/")
    (mine / "train/etc").symlink_to("/etc")
    link(mine / "_timings", mine.parent / "theirs")
    assert run("takedown", mine) == 2
    capsys.readouterr()
    assert verify.main([str(mine), "processes=1"]) == 1
    found = [line for line in capsys.readouterr().out.splitlines() if "link" in line]
    assert [line.partition(":")[0] for line in found] == ["_timings", "train/etc", "x"]
    assert all(line.endswith("; remove the link") for line in found)
