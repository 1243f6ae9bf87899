"""A further input format: one class and one entry."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from hypergrit_common.errors import UserError
from pipeline.read import listing
from pipeline.read.config import ReadConfig
from pipeline.read.types import BadRecord, RawRow, Record, Sequential
from tests.pipeline.read.test_stage import read_all


class Pairs(Sequential):
    """A URL and a caption in each line, with a bar between them."""

    name = "pairs"
    suffixes = (".pairs",)

    def columns(self, file: IO[bytes], config: ReadConfig) -> list[str]:
        return ["url", "caption"]

    def find(self, file: IO[bytes], offset: int, line: int, n_columns: int, config: ReadConfig) -> Iterator[RawRow]:
        file.seek(offset)
        for number, text in enumerate(file, line):
            yield RawRow(offset, number, text)
            offset += len(text)

    def parse(self, payload: Any, header: list[str], file: IO[bytes], config: ReadConfig) -> Record | BadRecord:
        url, bar, caption = payload.decode().strip().partition("|")
        return {"url": url, "caption": caption} if bar else BadRecord("no bar")


@pytest.mark.parametrize("rows_per_shard", [1, 2, 10])
def test_an_entry_makes_a_format_known(tmp_path: Path, rows_per_shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pairs").write_text("http://a/0|a dog\nnothing\nhttp://a/2|a cat\n")
    with pytest.raises(UserError, match="no file of a known format"):
        read_all(tmp_path)
    monkeypatch.setattr(listing, "BUILT_IN", (*listing.BUILT_IN, Pairs()))
    rows = read_all(tmp_path, rows_per_shard)
    assert [(row["url"], row["caption_original"]) for row in rows if row["reason"] is None] == [
        ("http://a/0", "a dog"),
        ("http://a/2", "a cat"),
    ]
    assert "line 2: no bar" in rows[1]["detail"]
