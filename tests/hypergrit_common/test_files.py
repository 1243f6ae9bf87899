"""Named pipes, devices and folders in place of files are refused before they are opened: nothing hangs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file, check_folder_files, new_folder
from hypergrit_common.json_file import read_object
from hypergrit_common.remote import open_file
from hypergrit_common.shards import list_shards
from hypergrit_common.weights import read_tensors
from pipeline.config import load_config
from pipeline.explore.marks import MarkFile
from pipeline.explore.quality.known import read_known
from pipeline.read.config import ReadConfig
from pipeline.read.plan import plan_shards
from pipeline.stages.ground.glip.load import load_glip
from pipeline.stages.parse.parser import load_spacy
from pipeline.stages.score.scorers import load_scorer
from trainer.checkpoints.model import load_model
from trainer.evaluation.sets.annotations import checksum, read_json, read_lines
from trainer.text.tokenizer import read_tokenizer


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "00000.tar"
    path.parent.mkdir()
    os.mkfifo(path)
    return path


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    check_file(tmp_path / "link")
    check_folder_files(tmp_path)


@pytest.mark.parametrize(("path", "kind"), [("/dev/zero", "a device"), ("/tmp", "a folder")])
def test_the_kind_is_named(path: str, kind: str) -> None:
    with pytest.raises(OSError, match=f"{path} is {kind}; give a regular file"):
        check_file(path)


@pytest.mark.parametrize(
    "use",
    [
        read_tensors,
        read_object,
        read_tokenizer,
        load_model,
        load_glip,
        lambda path: open_file(str(path)),
        lambda path: list_shards(str(path)),
        lambda path: list_shards(str(path.parent)),
        lambda path: load_config([str(path)]),
        lambda path: plan_shards(str(path), 4, None, ReadConfig()),
        lambda path: plan_shards(str(path.parent), 4, None, ReadConfig()),
        lambda path: load_scorer(f"open_clip:ViT-B-32/{path}", "cpu", 1),
        lambda path: load_scorer(str(path.parent), "cpu", 1),
        lambda path: load_spacy(str(path.parent)),
        lambda path: load_spacy(str(path.parent.parent)),
        read_known,
        MarkFile,
        read_json,
        read_lines,
        checksum,
    ],
)
def test_a_named_pipe_is_refused_by_name(pipe: Path, use: Callable[[Path], object]) -> None:
    with pytest.raises((UserError, OSError, ValueError), match=str(pipe.parent)) as error:
        use(pipe)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mask", [0o077, 0o022])
def test_a_new_folder_has_the_permissions_of_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with new_folder(tmp_path / "export") as draft:
            (draft / "file").touch()
    finally:
        os.umask(before)
    assert (tmp_path / "export").stat().st_mode & 0o777 == 0o777 & ~mask


def test_the_draft_of_a_killed_folder_stays_beside_it_until_the_next_folder_is_made(tmp_path: Path) -> None:
    program = (
        "import os, sys; from hypergrit_common.files import new_folder; folder = new_folder(sys.argv[1]); "
        "(folder.__enter__() / 'row').touch(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program, tmp_path / "page"], check=False).returncode == -9
    (draft,) = tmp_path.iterdir()
    assert draft.name.startswith(".page.")
    assert (draft / "row").exists()
    with new_folder(tmp_path / "other"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
