"""Shards that were damaged after they were finished."""

import json
import shutil
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.images import ImageRejected
from pipeline.config import ReportConfig
from pipeline.output.ledger import read_manifests
from pipeline.output.manifest import read_failed
from pipeline.output.store import Store
from pipeline.report.cards import pick_pictures
from pipeline.report.stats import build_stats


@pytest.fixture
def copied(output: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(output, tmp_path / "out"))


@pytest.mark.parametrize("place", ["middle", "end"])
def test_a_damaged_arrow_file_is_named_with_the_fix(copied: Path, place: str) -> None:
    path = copied / "arrow/00001.arrow"
    data = bytearray(path.read_bytes())
    first = {"middle": len(data) // 2 - 900, "end": len(data) - 200}[place]
    data[first : first + 180] = bytes(180)
    path.write_bytes(data)
    shutil.rmtree(copied / "_summaries")  # else arrow/ is not read
    with pytest.raises(UserError, match=r"arrow/00001.arrow is damaged \(.*delete the manifest .*/00001.json") as error:
        build_stats(str(copied))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["[1]", "{}", "[" * 100_000, "x"])
def test_a_damaged_record_of_a_failure_is_skipped(copied: Path, content: str) -> None:
    (copied / "_failed").mkdir()
    (copied / "_failed/00007.json").write_text(content)
    assert read_failed(Store(str(copied))) == []
    assert json.loads((copied / "stats.json").read_text())["shards"] == build_stats(str(copied))["shards"]


def test_a_damaged_picture_is_named_and_not_shown(
    copied: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def rejected(*_: object) -> object:
        raise ImageRejected("undecodable", "broken JPEG")

    monkeypatch.setattr("pipeline.report.cards.decode", rejected)
    store = Store(str(copied))
    assert pick_pictures(store, read_manifests(store), ReportConfig()) == []
    assert "is damaged, and not shown" in caplog.text
