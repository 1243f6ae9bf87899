"""The model card beside a saved model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hypergrit_common.errors import UserError
from hypergrit_common.json_file import read_object, write_object
from tests.trainer.checkpoints.test_model import save
from tests.trainer.small import small_model
from tests.trainer.small_run import run_forked
from trainer.inference.hub import model_card, write_card

CONFIG: dict[str, Any] = {"model": "meru", "config": {"embed_dim": 16, "eps": 1e-8}, "record": {}}
HOSTILE = "<script>alert(1)</script> | a `b` ![x](http://h)\n# heading\x1b[2J"


def front_matter(card: str) -> dict[str, Any]:
    _, front, _ = card.split("---\n", 2)
    found: dict[str, Any] = yaml.safe_load(front)
    return found


def test_the_front_matter_is_that_of_the_hub() -> None:
    assert front_matter(model_card(CONFIG, "cc-by-4.0")) == {
        "license": "cc-by-4.0",
        "library_name": "hypergrit",
        "pipeline_tag": "zero-shot-image-classification",
        "tags": ["image-text", "hyperbolic", "meru"],
    }
    assert front_matter(model_card(CONFIG | {"model": "clip"}))["tags"] == ["image-text", "clip"]
    with pytest.raises(UserError, match=r"is no identifier of a license; give one of the hub, such as cc-by-4\.0"):
        model_card(CONFIG, "mit\n---\n# heading")


def test_unknown_parts_of_the_training_have_no_section() -> None:
    card = model_card(CONFIG)
    assert [line for line in card.splitlines() if line.startswith("#")] == ["# MERU", "## Settings of the model"]
    assert "embed_dim: 16" in card


def test_a_command_stands_before_the_training_that_it_includes() -> None:
    record = {"command": "make train-demo", "version": "0.7.0", "training": {"seed": 3}}
    card = model_card(CONFIG | {"record": record})
    places = [card.index(part) for part in ("| version | 0.7.0 |", "make train-demo", "hypergrit train", "seed: 3")]
    assert places == sorted(places)


def test_texts_cannot_change_the_page() -> None:
    record = {
        "command": f"train ```\n{HOSTILE}\n```",
        "data": {"shards": HOSTILE},
        "evaluation": {f"zero_shot/{HOSTILE}/accuracy": 0.25},
    }
    card = model_card(CONFIG | {"record": record})
    assert "\x1b" not in card
    outside, fence = [], ""
    for line in card.splitlines():
        if fence:
            fence = "" if line == fence else fence
        elif line.startswith("```"):
            fence = line[: len(line) - len(line.lstrip("`"))]
        else:
            outside.append(line)
    assert not fence
    assert "# heading" not in outside
    assert not any("<script>" in line.replace("\\<script\\>", "") for line in outside)
    assert len([line for line in outside if "script" in line]) == 2  # each in one cell of one row
    assert any(r"zero\_shot/\<script\>" in line and "0.2500" in line for line in outside)


def test_urls_have_no_secrets() -> None:
    url = "https://ann:pw@host/train/{000..009}.tar?X-Signature=abc"
    card = model_card(CONFIG | {"record": {"training": {"data": {"shards": url}}}})
    assert "host/train" in card
    assert "pw" not in card
    assert "abc" not in card


def test_a_saved_model_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    model, home = small_model("clip"), "/home/ann"
    model.config = replace(model.config, image=replace(model.config.image, weights=f"{home}/vit.safetensors"))
    record = {
        "training": {"data": {"shards": f"file://{home}/web/{{00..09}}.tar,{home}/more"}, "output": f"{home}/out/"}
    }
    write_card(save(tmp_path, model, record=record))
    for name in ("README.md", "config.json"):
        assert home not in (tmp_path / name).read_text()
    assert "shards: '{00..09}.tar,more'" in (tmp_path / "README.md").read_text()


def test_results_are_kept_in_the_folder(tmp_path: Path) -> None:
    write_object(CONFIG, tmp_path / "config.json")
    write_card(tmp_path, {"retrieval/text_to_image/recall@1": 0.5})
    write_card(tmp_path)
    assert "0.5000" in (tmp_path / "README.md").read_text()
    with pytest.raises(OSError, match="nothing"):
        write_card(tmp_path / "nothing")


def test_a_run_writes_the_card_of_its_model(tmp_path: Path) -> None:
    output = tmp_path / "run"
    assert run_forked(output, f"evaluation.shards={tmp_path / 'shards'}") == [0]
    card = (output / "model" / "README.md").read_text()
    evaluation = read_object(output / "evaluation.json")
    assert read_object(output / "model" / "config.json")["record"]["evaluation"] == evaluation
    data = read_object(output / "model" / "config.json")["record"]["data"]
    assert "| shards | shards |" in card
    assert str(tmp_path) not in card
    assert data["index_hash"] in card
    assert "hypergrit train train.yaml" in card
    assert r"retrieval/text\_to\_image/recall@5" in card
