"""The benchmark form of the command: unexpected errors, stale results, training shards, and models that do not load."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.held_out.test_evaluate import save
from tests.trainer.evaluation.run.test_benchmarks import arguments, data, evaluated
from tests.trainer.evaluation.run.test_contamination import write_shard
from trainer.evaluate import main
from trainer.evaluation.run import contamination

__all__ = ["data", "evaluated"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(tmp_path / "meru" / "model", "meru")


@pytest.fixture
def complete(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder that lacks no set of the tasks."""
    from trainer.evaluation.tasks import retrieval

    monkeypatch.setattr("trainer.evaluation.tasks.classification.READERS", {"eurosat": None})
    monkeypatch.setattr("trainer.evaluation.tasks.retrieval.SETS", {"coco": retrieval.SETS["coco"]})
    return data


def read(output: Path, task: str = "retrieval") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((output / "meru" / f"{task}.json").read_text())
    return content


def test_an_unexpected_error_is_one_line_and_the_other_tasks_run(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("text with \ud800\nand lines")

    output = tmp_path / "out"
    monkeypatch.setattr("trainer.evaluation.tasks.retrieval.evaluate_set", fail)
    assert main([*arguments(data, tmp_path / "alone", model), "tasks=[retrieval]"]) == 1
    caplog.clear()
    assert main(arguments(data, output, model)) == 1
    content = read(output)
    assert content["kind"] == "failed"
    assert content["error"].startswith("failed with ZeroDivisionError: text with")
    assert "in fail" in (output / "meru" / "retrieval-error.txt").read_text()
    (line,) = [record.getMessage() for record in caplog.records if "ZeroDivisionError" in record.getMessage()]
    assert "\n" not in line
    assert not any(record.exc_info for record in caplog.records if record.levelno > logging.DEBUG)
    assert read(output, "classification")["n_used"] == 10
    assert "failed with ZeroDivisionError" in (output / "index.html").read_text()
    monkeypatch.undo()
    assert main(arguments(data, output, model)) == 0
    assert read(output)["n_used"] == 6
    assert not (output / "meru" / "retrieval-error.txt").exists()


def test_results_with_skipped_images_are_computed_again(
    complete: Path, model: Path, tmp_path: Path, evaluated: list[str]
) -> None:
    command = arguments(complete, tmp_path / "out", model)
    image = complete / "coco/val2017/000000000007.jpg"
    hidden = image.rename(tmp_path / "hidden.jpg")
    for n_used, path in ((5, None), (6, hidden), (6, None)):
        if path:
            path.rename(image)
        assert main(command) == 0
        assert read(tmp_path / "out")["n_used"] == n_used
    assert evaluated.count("squeeze") == 2  # the last run kept the result
    assert evaluated.count("crop") == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda path: PIL.Image.new("RGB", (9, 9), "red").save(path),
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"nothing"),
    ],
    ids=["other picture", "missing", "damaged"],
)
def test_a_changed_image_makes_a_result_stale(
    complete: Path, model: Path, tmp_path: Path, evaluated: list[str], change: Callable[[Path], object]
) -> None:
    command = arguments(complete, tmp_path / "out", model)
    assert main(command) == main(command) == 0
    assert evaluated.count("squeeze") == 1
    change(complete / "coco/val2017/000000000007.jpg")
    assert main(command) == 0
    assert evaluated.count("squeeze") == 2
    assert evaluated.count("crop") == 1


def test_other_training_shards_of_the_same_name_make_a_result_stale(
    complete: Path, model: Path, tmp_path: Path
) -> None:
    image = (complete / "coco/val2017/000000000007.jpg").read_bytes()
    folder = tmp_path / "shards"
    command = arguments(complete, tmp_path / "out", model, train_shards=folder)
    write_shard(folder, [(image, "http://f/none")])
    assert main(command) == 0
    assert read(tmp_path / "out")["contamination"]["by_url"] == 0
    write_shard(folder, [(image, "http://f/none"), (image, "http://f/70")] * 20)
    assert main(command) == 0
    copies = read(tmp_path / "out")["contamination"]
    assert (copies["by_url"], copies["n_training"]) == (1, 40)


def test_training_shards_are_checked_before_the_first_task(
    data: Path, model: Path, tmp_path: Path, evaluated: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(data, tmp_path / "out", model, train_shards=tmp_path / "nonexist")) == 2
    assert "error: train_shards: " in capsys.readouterr().err
    assert not evaluated


@pytest.mark.parametrize("broken", [True, False])
def test_a_result_is_not_lost_for_its_contamination(
    complete: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    folder, output = tmp_path / "shards", tmp_path / "out"
    if broken:
        folder.mkdir()
        (folder / "00000.tar").write_bytes(b"no tar" * 1000)
    else:
        write_shard(folder, [((complete / "coco/val2017/000000000007.jpg").read_bytes(), "")])
        monkeypatch.setattr("trainer.evaluation.run.contamination.find_near", lambda *_: [][0])
    command = arguments(complete, output, model, train_shards=folder)
    assert main(command) == 3
    content = read(output)
    assert content["n_used"] == 6
    assert content["contamination"] is None
    assert "no comparison with the training shards: " in content["contamination_error"]
    assert "no comparison with the training shards: " in (output / "index.html").read_text()
    (folder / "00000.tar").unlink()
    write_shard(folder, [((complete / "coco/val2017/000000000007.jpg").read_bytes(), "")])
    monkeypatch.setattr("trainer.evaluation.run.contamination.find_near", lambda queries, *_: queries > 0)
    assert main(command) == 0
    assert read(output)["contamination"]["by_hash"] == 1


@pytest.mark.parametrize("kind", [UserError, ZeroDivisionError])
def test_passwords_and_control_characters_of_errors_reach_no_file(
    complete: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise kind("cannot read \x1b[2Jhttp://ann:secret@host/a.tar")

    output, folder = tmp_path / "out", tmp_path / "shards"
    write_shard(folder, [((complete / "coco/val2017/000000000007.jpg").read_bytes(), "")])
    monkeypatch.setattr("trainer.evaluation.run.runner.training_fingerprints", fail)
    assert main(arguments(complete, output, model, train_shards=folder)) == 3
    assert "http://***@host/a.tar" in read(output)["contamination_error"]
    texts = [path.read_text() for path in output.rglob("*") if path.suffix in (".json", ".md", ".html", ".txt")]
    assert len(texts) >= 5
    assert not [text for text in texts if "secret" in text or "\x1b" in text]


def test_fingerprints_of_training_shards_are_read_once(
    complete: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    original = contamination.build_index
    monkeypatch.setattr(contamination, "build_index", lambda *args: calls.append(args) or original(*args))
    write_shard(tmp_path / "shards", [((complete / "coco/val2017/000000000007.jpg").read_bytes(), "")])
    assert main(arguments(complete, tmp_path / "out", model, train_shards=tmp_path / "shards")) == 0
    assert len(calls) == 1
    assert read(tmp_path / "out", "classification")["contamination"]["n_training"] == 1


def test_models_that_do_not_load_are_named_in_all_outputs(
    data: Path, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output, wrong = tmp_path / "out", tmp_path / "wrong.pth"
    wrong.write_bytes(b"nothing")
    assert main(arguments(data, output, f"hycoclip:{wrong}", model)) == 3
    (line,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert "wrong.pth" in line
    assert "\n" not in line
    found = json.loads((output / "models.json").read_text())["models"]
    assert found["meru"] == {"path": str(model), "name": "meru", "hash": read(output)["model"]["hash"]}
    assert found["hycoclip-wrong"].keys() == {"path", "error"}
    assert "wrong.pth" in found["hycoclip-wrong"]["error"]
    for name in ("index.html", "summary.md"):
        assert "hycoclip-wrong is not evaluated: model=hycoclip:" in (output / name).read_text().replace("\\", "")
