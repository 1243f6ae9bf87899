"""Input files with names that cannot be recorded or opened, and links to nothing."""

import dataclasses
import os
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from pipeline.read.listing import list_files
from tests.pipeline.output.resume.jobs import configure, plan, run, write_rows


def write(folder: Path, name: bytes) -> str:
    path = os.fsdecode(os.path.join(os.fsencode(folder), name))
    Path(path).write_text("url,caption\nhttp://a/0,x\n")
    return path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (b"\xff\xfe.csv", r"/\\udcff\\udcfe.csv is not valid UTF-8; rename the file"),
        (b"a::b.csv", r"/a::b.csv contains '::', which separates chained URLs; rename"),
    ],
)
def test_a_name_that_cannot_be_used_is_an_error_with_the_fix(tmp_path: Path, name: bytes, message: str) -> None:
    path = write(tmp_path, name)
    for input in (str(tmp_path), path):
        with pytest.raises(UserError, match=message):
            list_files(input)


@pytest.mark.parametrize("target", ["nowhere", "a.jsonl"])
def test_a_broken_link_is_a_damaged_file(tmp_path: Path, target: str) -> None:
    write_rows(tmp_path / "in" / "b.jsonl", "b", 2)
    (tmp_path / "in" / "a.jsonl").symlink_to(target)
    config = configure(tmp_path / "in", tmp_path / "out")
    with pytest.raises(
        UserError, match=r"input file .*a.jsonl: it is a link to a file .*remove it .*skip_damaged=true"
    ):
        plan(config)
    config = dataclasses.replace(config, read=dataclasses.replace(config.read, skip_damaged=True))
    assert run(config) == [0]
    assert run(config) == []
    (error,) = plan(config).damaged
    assert "a.jsonl: it is a link" in error
