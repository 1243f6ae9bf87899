"""The benchmark form of the command: unexpected errors, stale and hostile results, training shards, and models that do not load."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.files import MARK
from tests.trainer.evaluation.held_out.test_evaluate import save
from tests.trainer.evaluation.run.test_benchmarks import arguments, data, evaluated
from tests.trainer.evaluation.run.test_contamination import write_shard
from trainer.evaluate import main
from trainer.evaluation.report.page import inline_file
from trainer.evaluation.run import contamination
from trainer.evaluation.run.benchmarks import check_links, print_results
from trainer.evaluation.run.runner import Finished, RunSettings, folder_state, read_finished
from trainer.evaluation.sets.annotations import checksum
from trainer.evaluation.task import TaskOptions

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


# Results of strangers: what a finished file may hold, and where its names lead.

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20
Content = dict[str, Any]


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, Content, RunSettings]:
    """A finished file, its content, and the settings with which it is kept; a private file lies beside the output."""
    output, data = tmp_path / "out", tmp_path / "data"
    for folder in (output / "meru", data / "set"):
        folder.mkdir(parents=True)
    (data / "set/list.json").write_text("[]")
    (tmp_path / "private.png").write_bytes(PNG)
    (output / "meru/order-roc.png").write_bytes(PNG)
    content = {
        "format": 1, "task": "order", "metrics": {"set/auc": 0.5, "set/undefined": None}, "chance": {"set/auc": 0.5},
        "rules": {"ties": "do not rise"}, "n_used": 3, "skipped": {"a reason": 1},
        "checksums": {"set/list.json": checksum(data / "set/list.json"), "set": checksum(data / "set")},
        "details": {"best": [{"image": "set/a.png", "score": 1.5}]}, "images": {"set": folder_state(data / "set")},
        "contamination": dict.fromkeys(contamination.Contamination.__annotations__, 0),
        "figures": [{"file": "order-roc.png", "title": "ROC"}], "is_drawn": True,
    }  # fmt: skip
    return output / "meru/order.json", content, RunSettings(data=data, output=output, options=TaskOptions())


def reread(kept: tuple[Path, Content, RunSettings]) -> Content | None:
    path, content, settings = kept
    path.write_text(json.dumps(content))
    return read_finished(path, {"format": 1, "task": "order"}, settings)


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else 1


WRONG: dict[str, Callable[[Content], object]] = {
    **{f"no {key}": lambda content, key=key: content.pop(key) for key in Finished.__annotations__},
    **{f"{key} of another type": lambda content, key=key: content.update({key: [7]}) for key in Finished.__annotations__},
    **{f"{key} of null": lambda content, key=key: content.update({key: None}) for key in ("details", "skipped", "figures")},
    "unknown key": lambda content: content.update(kind="failed"),
    "huge metric": lambda content: content["metrics"].update(huge=10**400),
    "infinite chance": lambda content: content["chance"].update(infinite=float("inf")),
    "text as a number": lambda content: content["metrics"].update(text="<b>"),
    "count as a text": lambda content: content["skipped"].update(some="\x1b[2J"),
    "contamination without its keys": lambda content: content.update(contamination={"any": 1}),
    "deep details": lambda content: content["details"].update(deep=nested(200)),
    "checksum elsewhere": lambda content: content["checksums"].update({"/etc/hosts": "0"}),
    "checksum above": lambda content: content["checksums"].update({"set/../../private.png": "0"}),
    "images elsewhere": lambda content: content["images"].update({"/tmp": "0"}),
    "images above": lambda content: content["images"].update({"..": "0"}),
    "figure without a title": lambda content: content["figures"][0].pop("title"),
    **{
        f"figure {name!r}": lambda content, name=name: content["figures"][0].update(file=name)
        for name in ("", "../../private.png", "order-/../../../private.png", "list-roc.png", "order-roc.png\n", "order.json")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_result_that_no_evaluation_writes_is_named_and_computed_again(
    kept: tuple[Path, Content, RunSettings], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert reread(kept) == kept[1]
    assert not caplog.messages
    WRONG[name](kept[1])
    assert reread(kept) is None
    (line,) = caplog.messages
    assert line.startswith(f"{kept[0]} is damaged or of another version, and is computed again: ")


@pytest.mark.parametrize("text", ["{", "[]", '{"a":' * 3000 + "1" + "}" * 3000, "\ud800"], ids=range(4))
def test_a_result_that_is_no_json_is_named_and_computed_again(
    kept: tuple[Path, Content, RunSettings], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept[0].write_bytes(text.encode(errors="surrogatepass"))
    assert read_finished(kept[0], {}, kept[2]) is None
    assert [line.split(" is damaged")[0] for line in caplog.messages] == [str(kept[0])]


@pytest.mark.parametrize("kind", ["link", "link to the own figure", "folder", "pipe", "key", "empty", "large"])
def test_only_a_png_file_of_the_output_is_embedded_in_a_page(
    kept: tuple[Path, Content, RunSettings], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept[0].with_name("order-roc.png")
    assert inline_file(path)
    if kind == "large":
        monkeypatch.setattr("trainer.evaluation.report.page.MAX_SAMPLE_BYTES", len(PNG) - 1)
    else:
        path.unlink()
        {
            "link": lambda: path.symlink_to(kept[0].parents[2] / "private.png"),
            "link to the own figure": lambda: (path.with_suffix("").write_bytes(PNG), path.symlink_to("order-roc")),
            "folder": path.mkdir,
            "pipe": lambda: os.mkfifo(path),
            "key": lambda: path.write_text("-----BEGIN OPENSSH PRIVATE KEY-----"),
            "empty": path.touch,
        }[kind]()
    assert inline_file(path) == ""
    assert reread(kept) is None


@pytest.mark.parametrize("name", ["a\0b", "b" * 5000, "\ud800", "pipe"])
def test_a_result_of_files_that_cannot_be_read_is_computed_again(
    kept: tuple[Path, Content, RunSettings], name: str
) -> None:
    os.mkfifo(kept[2].data / "pipe")
    kept[1]["images"] = {}
    kept[1]["checksums"] = {name: "0"}
    assert reread(kept) is None
    kept[1]["checksums"] = {}
    kept[1]["figures"][0]["file"] = f"order-{name}.png"
    assert reread(kept) is None


@pytest.mark.parametrize("name", ["meru", "cache", "cache/0123", "cache/0123/image"])
def test_a_link_to_a_folder_is_followed_only_if_that_is_empty_or_marked(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    link, place = tmp_path / "out" / name, tmp_path / "place"
    place.mkdir()
    (place / "precious").touch()
    link.parent.mkdir(parents=True)
    link.symlink_to(place)
    assert main(arguments(tmp_path, tmp_path / "out", tmp_path / "none/meru")) == 2
    assert f"error: {link} is a link to {place}, whose files this command could change" in capsys.readouterr().err
    assert [path.name for path in place.iterdir()] == ["precious"]
    (place / MARK).write_text(f"{link}\n")
    check_links(tmp_path / "out", ["meru"])
    for path in place.iterdir():
        path.unlink()
    check_links(tmp_path / "out", ["meru"])
    assert (place / MARK).read_text() == f"{link}\n"


def test_names_in_a_result_cannot_control_the_terminal(
    kept: tuple[Path, Content, RunSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    kept[1]["metrics"] = {"set/\x1b]0;title\x07\nFORGED \u202etxt": 0.5}
    content = reread(kept)
    assert content is not None
    print_results({"meru": {"order": content}}, ["order"], kept[2].output)
    head, line, *_, last = capsys.readouterr().out.splitlines()
    assert line.split()[1].startswith(r"order/set/\x1b]0;title\x07\nFORGED")
    assert last == f"results: {kept[2].output}/index.html"
    assert not {*"\x1b\x07\u202e"} & {*head, *line}
