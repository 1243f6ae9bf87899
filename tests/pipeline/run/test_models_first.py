"""A job whose model, parser or vocabulary does not exist ends before it reads a row, with the sentence that helps."""

import shutil
import time
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from pipeline.models import check_available
from tests.patience import PATIENCE_S
from tests.pipeline.jobs import hash_output, run_job


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("grounder=models/glip_t", ("grounder=models/glip_t", "docs/models.md", "hypergrit models fetch")),
        ("scorer=someone/clip", ("scorer=someone/clip", "hypergrit models fetch")),
        ("scorer=/no/such/folder", ("/no/such/folder", "no such file or folder")),
        ("parse.model=xx_none", ("parse.model", "pip install xx_none")),
        ("parse.model=/no/such/folder", ("parse.model", "check the path of the folder")),
        ("ground.vocabulary=/no/vocab.txt", ("ground.vocabulary=/no/vocab.txt",)),
    ],
)
@pytest.mark.parametrize("mode", ["dry_run=false", "dry_run=true"])
def test_what_does_not_exist_is_named_within_seconds_before_the_input_is_planned(
    tars: Path, tmp_path: Path, setting: str, words: tuple[str, ...], mode: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("pipeline.run.job.plan_work", lambda *_: pytest.fail("planned"))
    start = time.monotonic()
    assert run_job(tars, tmp_path / "out", setting, mode) == 2
    assert time.monotonic() - start < PATIENCE_S  # without the retries of a hub; about a second on a quiet machine
    error = capsys.readouterr().err
    assert all(word in error for word in words)
    assert not (tmp_path / "out" / "_job.json").exists()


def test_a_repository_whose_weights_are_not_in_the_cache_is_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = tmp_path / "models--someone--clip" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"scorer=someone/clip@abc is not on this machine, or not complete"):
        check_available("scorer", "someone/clip@abc")
    (snapshot / "model.safetensors").touch()
    check_available("scorer", "someone/clip@abc")


def test_a_missing_model_discards_no_finished_shard(
    tars: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Path(shutil.copytree(finished, tmp_path / "out"))
    before = hash_output(output)
    assert run_job(tars, output, "scorer=/no/such/folder", "overwrite=true") == 2
    assert "/no/such/folder" in capsys.readouterr().err
    assert hash_output(output) == before
    assert (output / "report.html").exists()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no config.json"),
        ({"config.json": "{}"}, "model.safetensors does not exist"),
        ({"config.json": "{}", "model.safetensors": ""}, "vocab.txt does not exist"),
    ],
)
def test_a_folder_that_lacks_a_file_of_its_model_is_refused_before_a_row_is_read(
    tars: Path, tmp_path: Path, files: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := tmp_path / "model").mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    assert run_job(tars, tmp_path / "out", f"grounder={folder}") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out" / "_job.json").exists()
