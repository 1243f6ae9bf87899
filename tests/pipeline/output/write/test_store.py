"""Listing a local output while other processes write to it."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.removed import LAST_COMMIT
from hypergrit_common.shards import list_shards
from pipeline.output.commit import has_content
from pipeline.output.listing import list_output
from pipeline.output.store import Store
from schemas.manifest import FileFacts


def test_a_file_that_vanishes_during_a_listing_hides_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "arrow"
    folder.mkdir()
    for name in ("0.arrow", "1.arrow.tmp", "2.arrow"):
        (folder / name).write_text("abc")
    real = os.scandir

    @contextmanager
    def scandir(path: str) -> Iterator[list[Any]]:
        with real(path) as entries:
            listed = list(entries)
        (folder / "1.arrow.tmp").unlink()
        yield listed

    monkeypatch.setattr(os, "scandir", scandir)
    assert Store(str(tmp_path)).sizes("arrow") == {"0.arrow": 3, "2.arrow": 3}


def test_a_file_of_the_recorded_size_with_other_bytes_is_not_the_recorded_one(tmp_path: Path) -> None:
    (tmp_path / "draft").write_bytes(b"abc")
    for content, is_it in ((b"abc", True), (b"abd", False), (b"abcd", False)):
        facts: FileFacts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "rows": 0}
        assert has_content(Store(str(tmp_path)), "draft", facts) is is_it


def test_a_pipe_in_place_of_a_file_that_shards_do_not_need_is_as_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "stats.json")
    assert Store(str(tmp_path)).read_spare("stats.json") is None
    assert "stats.json is not used" in caplog.text


def test_a_folder_that_does_not_exist_has_no_files(tmp_path: Path) -> None:
    assert Store(str(tmp_path)).sizes("arrow") == {}


def test_an_output_in_folders_of_1000_shards_is_refused_by_name(tmp_path: Path) -> None:
    for kind, suffix in (("train", "tar"), ("_manifests", "json")):
        path = tmp_path / kind / "0012" / f"0012345.{suffix}"
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    (tmp_path / "_layout.json").write_text('{"digits": 7, "per_folder": 1000}')
    with pytest.raises(UserError, match=LAST_COMMIT):
        list_output(Store(str(tmp_path)))
    for shards in (tmp_path, tmp_path / "train"):
        with pytest.raises(UserError, match=LAST_COMMIT):
            list_shards(str(shards))
