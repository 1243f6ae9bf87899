"""The benchmark form of the command, on invented data: results, pages, resumption, errors and exit codes."""

import json
import logging
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch

from tests.trainer.evaluation.held_out.test_evaluate import save
from tests.trainer.evaluation.run.test_contamination import encode, picture, write_shard
from tests.trainer.evaluation.sets.test_sets import write_image
from tests.trainer.evaluation.tasks.test_retrieval import write_coco
from tests.trainer.released_files import write_released
from trainer.encoders.config import TextConfig
from trainer.evaluate import main
from trainer.evaluation.catalog import set_infos
from trainer.evaluation.embedder import CachedEmbedder
from trainer.evaluation.run.benchmarks import labels
from trainer.evaluation.sets import fetch
from trainer.models.config import ModelConfig
from trainer.models.registry import build_model


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    write_coco(root)
    for i in range(10):
        write_image(root / "eurosat" / f"<b>Class{i}" / "a.png")
    return root


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The preprocessing of each call of the embedder: "squeeze" for retrieval, "crop" for classification."""
    calls: list[str] = []
    original = CachedEmbedder.images

    def images(self: CachedEmbedder, sources: Any, fit: Any = "crop", **keys: Any) -> Any:
        calls.append(fit)
        return original(self, sources, fit, **keys)

    monkeypatch.setattr(CachedEmbedder, "images", images)
    return calls


def arguments(data: Path, output: Path, *models: Path | str, **keys: object) -> list[str]:
    return [
        f"model=[{','.join(map(str, models))}]",
        f"data={data}",
        f"output={output}",
        "tasks=[retrieval,classification]",
        *(f"{key}={value}" for key, value in keys.items()),
    ]


class Links(HTMLParser):
    """Collects addresses that a page loads or links to, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]


def test_two_models_are_evaluated_side_by_side(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, models = tmp_path / "out", [save(tmp_path / name / "model", name) for name in ("meru", "phyclip")]
    assert main(arguments(data, output, *models)) == 0
    for name in ("meru", "phyclip"):
        retrieval = json.loads((output / name / "retrieval.json").read_text())
        assert retrieval["model"]["name"] == name
        assert retrieval["n_used"] == 6
        assert 0 <= retrieval["metrics"]["coco/text_to_image/recall@1"] <= 1
        assert retrieval["contamination"] is None
        assert "flickr30k" in retrieval["details"]["missing"]
        figures = retrieval["figures"]
        assert figures
        assert all((output / name / figure["file"]).read_bytes().startswith(b"\x89PNG") for figure in figures)
        found = json.loads((output / name / "classification.json").read_text())
        assert found["metrics"]["eurosat/accuracy"] == pytest.approx(0.1)  # ten copies of one picture
        assert found["rules"]["eurosat/subset"].startswith("full")
    summary = (output / "summary.md").read_text()
    assert "| PHyCLIP | PHyCLIP, table 2, B/16, GRIT with boxes |" in summary
    assert "flickr30k is not evaluated: expected" in summary.replace("\\", "")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["model", "metric", "value", "chance"]
    assert ["meru", "classification/eurosat/accuracy", "10.0", "10.0"] in lines
    assert lines[-1][0] == "results:"
    page = (output / "index.html").read_text()
    links = Links(page)
    assert all(address.startswith(("data:", "#")) for address in links.addresses)
    assert {"script", "link", "iframe", "b", "object"} & links.tags == {"b"}  # `b` of the tiles
    assert "&lt;b&gt;Class0" in page
    assert "<b>Class0" not in page
    assert "data:image/jpeg" in page
    assert "data:image/png" in page


def test_finished_results_are_kept_until_something_changes(
    data: Path, tmp_path: Path, evaluated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*arguments(data, tmp_path / "out", save(tmp_path / "meru" / "model", "meru")), "tasks=[classification]"]
    monkeypatch.setattr("trainer.evaluation.tasks.classification.READERS", {"eurosat": None})
    assert main(command) == main(command) == 0
    assert len(evaluated) == 1
    assert main([*command, "max_examples=5"]) == 0
    assert len(evaluated) == 2
    write_image(data / "eurosat" / "<b>Class0" / "new.png")
    assert main([*command, "max_examples=5"]) == 0
    assert len(evaluated) == 3


def test_a_released_file_is_evaluated_with_its_name(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build_model("clip", ModelConfig(text=TextConfig(width=64, layers=1, heads=1), embed_dim=16))
    write_released(tmp_path / "vit.pth", model)
    output = tmp_path / "out"
    assert main(arguments(data, output, f"clip:{tmp_path / 'vit.pth'}", max_examples=2)) == 0
    assert json.loads((output / "clip-vit" / "retrieval.json").read_text())["model"]["name"] == "clip"


def test_malformed_annotations_are_reported_and_the_other_task_runs(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data / "coco" / "annotations" / "captions_val2017.json").write_text("{")
    output, model = tmp_path / "out", save(tmp_path / "meru" / "model", "meru")
    assert main(arguments(data, output, model)) == 3
    content = json.loads((output / "meru" / "retrieval.json").read_text())
    assert content["kind"] == "malformed"
    assert "captions_val2017.json cannot be read as JSON" in content["error"]
    assert "captions_val2017.json cannot be read as JSON" in caplog.text
    assert "captions_val2017.json cannot be read as JSON" in (output / "index.html").read_text()
    assert json.loads((output / "meru" / "classification.json").read_text())["n_used"] == 10


def test_a_named_task_without_files_has_exit_code_3(data: Path, tmp_path: Path) -> None:
    output, model = tmp_path / "out", save(tmp_path / "meru" / "model", "meru")
    (data / "coco").rename(data / "other")
    assert main(arguments(data, output, model)) == 3
    content = json.loads((output / "meru" / "retrieval.json").read_text())
    assert content["kind"] == "missing"
    assert f"expected {data}/coco/annotations/captions_val2017.json" in content["error"]


def test_what_cannot_be_fetched_is_one_line_with_its_address_and_the_rest_is_evaluated(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(url: str) -> Any:
        raise URLError("Network is unreachable")

    infos = {key: set_infos()[key] for key in ("eurosat", "dtd", "cars")}
    monkeypatch.setattr(fetch, "set_infos", lambda: infos)
    monkeypatch.setattr(fetch, "open_url", refuse)
    caplog.set_level(logging.INFO)
    model = save(tmp_path / "run")
    assert main(arguments(data, tmp_path / "out", model, fetch="true")) == 3
    lines = [line for line in caplog.messages if line.startswith("fetch: ")]
    assert lines[:2] == [
        f"fetch: dtd: 0.63 GB to {data / 'dtd'}; license: for research",
        "fetch: cars: torchvision has no download that is read here",
    ]
    assert re.fullmatch(r"fetch: dtd: .*unreachable.*; fetch https://\S+ by hand, and unpack in .*dtd", lines[2])
    assert "eurosat/accuracy" in json.loads((tmp_path / "out/run/classification.json").read_text())["metrics"]


def test_contamination_is_in_each_result(data: Path, tmp_path: Path) -> None:
    for seed, path in enumerate(sorted((data / "coco" / "val2017").iterdir())):
        path.write_bytes(encode(picture(seed)))  # images of one colour, as `data` holds, are copies of each other
    image = (data / "coco" / "val2017" / "000000000007.jpg").read_bytes()
    shards = write_shard(tmp_path / "shards", [(image, "http://f/70")])
    output, model = tmp_path / "out", save(tmp_path / "meru" / "model", "meru")
    assert main(arguments(data, output, model, train_shards=shards)) == 0
    copies = json.loads((output / "meru" / "retrieval.json").read_text())["contamination"]
    assert (copies["by_url"], copies["by_hash"], copies["by_picture"], copies["any"]) == (1, 1, 1, 2)
    assert copies["n_images"] == 6
    assert "2 of 6 evaluation images appear among 1 training images" in (output / "index.html").read_text()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["data=x", "output=y"], "model is missing; give model=[FOLDER]"),
        (["model=[x]", "output=y"], "data is missing"),
        (["model=[x]", "data=none", "output=y"], "data=none is not a folder"),
        (["model=[x]", "data=.", "output=y", "tasks=[nothing]"], "tasks holds 'nothing'; choose from classification"),
        (["model=[x]", "data=.", "output=y", "max_examples=-1"], "max_examples is -1"),
    ],
)
def test_wrong_settings_are_errors_that_name_the_key(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(given) == 2
    assert message in capsys.readouterr().err


def test_no_usable_model_is_an_error(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(data, tmp_path / "out", tmp_path / "none")) == 2
    assert f"error: model={tmp_path / 'none'}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (["a/run/model"], ["run"]),
        (["meru:/runs/12:30/a.pth"], ["meru-a"]),  # a folder with a colon
        *(([f"runs/{name}/model"], [f"runs-{name}"]) for name in ("cache", "index.html", "summary.md", "models.json")),
    ],
)
def test_models_have_short_names_that_no_other_output_has(models: list[str], names: list[str]) -> None:
    assert list(labels(models)) == names


def test_names_of_models_are_distinct() -> None:
    models = ["a/run/model", "b/run/model", "meru:c/vit_b.pth", "hycoclip:c/vit_b.pth"]
    names = labels(models)
    assert list(names.values()) == models
    assert len(names) == 4
    assert all("/" not in name for name in names)
