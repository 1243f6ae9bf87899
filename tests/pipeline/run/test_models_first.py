"""A job whose model, parser or vocabulary does not exist ends before it reads a row, with the sentence that helps."""

import time
from pathlib import Path

import pytest

from tests.pipeline.jobs import run_job


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("grounder=models/glip_t", ("grounder=models/glip_t", "docs/models.md", "hypergrit models fetch")),
        ("scorer=someone/clip", ("scorer=someone/clip", "hypergrit models fetch")),
        ("scorer=/no/such/folder", ("/no/such/folder", "no such file or folder")),
        ("parse.model=xx_none", ("parse.model", "pip install xx_none")),
        ("ground.vocabulary=/no/vocab.txt", ("ground.vocabulary=/no/vocab.txt",)),
    ],
)
@pytest.mark.parametrize("mode", ["dry_run=false", "dry_run=true"])
def test_what_does_not_exist_is_named_within_seconds(
    tars: Path, tmp_path: Path, setting: str, words: tuple[str, ...], mode: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    assert run_job(tars, tmp_path / "out", setting, mode) == 2
    assert time.monotonic() - start < 60  # without the retries of a hub; about a second on a quiet machine
    error = capsys.readouterr().err
    assert all(word in error for word in words)
    assert not list((tmp_path / "out").glob("train/*"))
