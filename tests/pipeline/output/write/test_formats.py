"""The formats of a shard agree with each other, and the comparison that says so finds what does not."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.config import WriteConfig
from tests.pipeline.commands.verify.damage import FILES, replace, substitute, write_two
from tests.pipeline.commands.verify.test_shard import FORMATS, IMAGE, arrow_bytes
from tests.pipeline.output.formats import differences


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return write_two(tmp_path)


@pytest.mark.parametrize("formats", FORMATS)
def test_a_shard_as_written_has_no_differences(tmp_path: Path, formats: tuple[str, ...]) -> None:
    assert differences(write_two(tmp_path, WriteConfig(formats=formats))) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "text"),
    [
        ("grit/00001.tar", IMAGE, IMAGE[:-40] + bytes(40), "is not that of arrow/"),
        ("grit/00001.tar", IMAGE, IMAGE.replace(b"\x00\xc8\x01\x2c", b"\x00\xc7\x01\x2c"), "jpg has 300 x 199 px"),
        ("grit/00001.tar", b" dog on a", b" cat on a", "txt is not the caption"),
        ("grit/00001.tar", b'"width":300', b'"width":301', "json is not that of its row"),
        ("train/00001.tar", b" dog on a", b" cat on a", "child.txt is not that of its JSON"),
        ("train/00001.tar", b'"width":300', b'"width":301', "differs from arrow/ in width"),
        ("train/00001.tar", b'"box":0', b'"box":1', "its phrases are not those of arrow/"),
    ],
)
def test_a_sample_that_is_not_that_of_its_row_is_found(
    output: Path, name: str, old: bytes, new: bytes, text: str
) -> None:
    substitute(output, name, old, new)
    assert any(text in difference for difference in differences(output))


def test_a_changed_row_of_arrow_differs_from_all_other_formats(output: Path) -> None:
    table = pa.ipc.open_file(output / FILES[0]).read_all()
    rows = table.to_pylist()
    rows[2]["caption_original"], rows[2]["caption"] = "x", rows[2]["caption"].replace("dog", "cat")
    replace(output, FILES[0], arrow_bytes(pa.Table.from_pylist(rows, schema=table.schema)))
    found = differences(output)
    assert any("grit/00001.parquet: row 000000000012 differs from arrow/ in caption" in text for text in found)
    assert any("train/00001.tar: sample 000000000012" in text for text in found)


def test_train_and_grit_are_compared_without_arrow(tmp_path: Path) -> None:
    write_two(tmp_path, WriteConfig(formats=("train", "grit")))
    substitute(tmp_path, "train/00001.tar", b'"width":300', b'"width":301')
    assert differences(tmp_path) == ["train/00001.tar: sample 000000000010: differs from grit/ in width"]
