"""Checking an output in an object store."""

import tempfile
from pathlib import Path

import fsspec
import pytest

from pipeline.commands.verify import main
from tests.pipeline.commands.verify.damage import flip, write_two


def test_a_damaged_object_is_found_and_requeued(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_two(tmp_path / "out")
    flip(tmp_path / "out/train/00002.tar")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("TMPDIR", str(scratch))
    fs = fsspec.filesystem("s3")
    fs.mkdir("verified")
    fs.put(f"{tmp_path}/out/", "verified/out/", recursive=True)
    assert main(["s3://verified/out", "processes=1", "requeue=true"]) == 1
    text = capsys.readouterr().out
    assert "shard 2: train/00002.tar: other content" in text
    assert "shard 1:" not in text
    assert [name.rpartition("/")[2] for name in fs.ls("verified/out/_manifests", detail=False)] == ["00001.json"]
    assert list(scratch.iterdir()) == []  # the copies are removed
