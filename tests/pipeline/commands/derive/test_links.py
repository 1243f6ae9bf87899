"""Folders and files of an output that are links: what is behind them is not changed, but for a bare folder."""

import shutil
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from pipeline.commands import explore, takedown, verify
from pipeline.output.lock import hold_lease
from pipeline.output.store import Store
from schemas.files import ANSWERS_FOLDER, OUTPUT_FOLDERS, ROLLUP_FOLDER
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


def test_a_bare_folder_on_another_disk_may_be_behind_a_link(mine: Path) -> None:
    shutil.move(mine / "train", mine.parent / "disk")
    (mine / "train").symlink_to(mine.parent / "disk")
    assert run("takedown", mine) == 0
    assert run("verify", mine) == 0
