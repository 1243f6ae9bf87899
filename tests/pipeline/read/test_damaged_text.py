"""Text files with a damage, or with blank lines before the header."""

import gzip
import random
from pathlib import Path

import pytest

from pipeline.read.config import ReadConfig
from pipeline.read.listing import list_files
from pipeline.read.plan import Batch, ShardPlans, cut_files
from pipeline.read.source import read_shard

HEADER = "url,caption\n"


def truncated(lines: list[str], n_bytes: int) -> bytes:
    """A gzip file without its last bytes."""
    return gzip.compress((HEADER + "".join(lines)).encode(), 1)[:-n_bytes]


@pytest.mark.parametrize("rows_per_shard", [7, 1000])
@pytest.mark.parametrize("quotes", [(), (100,), (20, 150), (99, 100)])
def test_an_open_quote_before_a_damage_costs_one_row(
    tmp_path: Path, rows_per_shard: int, quotes: tuple[int, ...]
) -> None:
    numbers = random.Random(0)
    lines = [f"http://a/{numbers.randbytes(8).hex()},a dog {i}\n" for i in range(200)]
    for i in quotes:
        lines[i] = lines[i].replace(",a dog", ',"a dog')
    path = tmp_path / "a.csv.gz"
    path.write_bytes(truncated(lines, 600))
    (cut,) = cut_files(list_files(str(path)), rows_per_shard, None, ReadConfig())
    assert "a.csv.gz" in cut.damage
    plans = ShardPlans([Batch([cut], rows_per_shard)])
    rows = [row for shard in plans for row in read_shard(shard, ReadConfig()).to_pylist()]
    assert 150 < len(rows) < 200
    assert [i for i, row in enumerate(rows) if row["status"] != "kept"] == list(quotes)
    assert [row["caption_original"] for row in rows if row["status"] == "kept"] == [
        f"a dog {i}" for i in range(len(rows)) if i not in quotes
    ]


@pytest.mark.parametrize("blanks", ["\n", "\r\n\n", "\ufeff\n\n"])
def test_blank_lines_before_the_header_are_skipped_and_counted(tmp_path: Path, blanks: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(f"{blanks}{HEADER}http://a/0,x\nhttp://a/1\nhttp://a/2,z\n".encode())
    (cut,) = cut_files(list_files(str(path)), 2, None, ReadConfig())
    rows = [row for shard in ShardPlans([Batch([cut], 2)]) for row in read_shard(shard, ReadConfig()).to_pylist()]
    assert [row["caption_original"] for row in rows] == ["x", None, "z"]
    n_blank = blanks.count("\n")
    assert rows[1]["detail"].startswith(f"{path.name}, line {n_blank + 3}: 1 fields where the header has 2")


@pytest.mark.parametrize("content", ["", "\n", "\n" * 50])
def test_a_file_of_blank_lines_has_no_rows(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)
    (cut,) = cut_files(list_files(str(path)), 2, None, ReadConfig())
    assert cut.cuts[-1].row == 0
