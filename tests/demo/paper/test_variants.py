"""Rows of the miniature study: a row with a paper's name has its loss and constants, and the trainer accepts all settings."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from demo.paper.heads import config_of
from demo.paper.sizes import SIZES, rows_of
from demo.paper.variants import MAIN, VARIANTS
from trainer.models.registry import MODELS

MAIN_ROWS = [variant for variant in VARIANTS.values() if variant.table == MAIN]
FEATURES = {"width": 192, "hidden": 512, "depth": 1}


@pytest.fixture
def features(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of features, as far as a configuration reads it."""
    tower = {"name": "cached", "weights": "demo/weights/clip", "kwargs": FEATURES}
    training = {"tokenizer": "demo/weights/clip/merges.txt", "model": {"image": tower, "text": tower}}
    record = {"training": training}
    monkeypatch.setattr("trainer.config.read_records", lambda _: [record])
    monkeypatch.chdir(Path(__file__).parents[3])
    return Path("features")


def test_rows_with_the_name_of_a_model_have_the_papers_loss_and_constants(features: Path) -> None:
    named = [variant for variant in MAIN_ROWS if variant.title == MODELS[variant.model].title]
    assert {variant.model for variant in named} == set(MODELS) - {"hyper3", "taxonomy"}
    for variant in named:
        found = asdict(config_of(variant, features, 0, 1e-3, 1000).model)
        default = asdict(MODELS[variant.model].config())
        differing = {key for key in default if found[key] != default[key]} - {"image", "text"}
        assert differing == {"embed_dim"}, variant


@pytest.mark.rest
def test_all_rows_are_accepted_and_no_two_are_the_same(features: Path) -> None:
    seen = {}
    for variant in VARIANTS.values():
        config = config_of(variant, features, 0, 1e-3, 1000 * variant.longer)
        assert (config.model.boxes_as_pairs or hasattr(config.model, "use_boxes")) == variant.has_boxes
        facts = repr((variant.tower, variant.boxes, config))
        assert facts not in seen, (variant.key, seen[facts])
        seen[facts] = variant.key


def test_keys_name_tower_and_boxes_and_are_names_of_files() -> None:
    assert VARIANTS["hycoclip@scenes"].tower == "scenes"
    assert VARIANTS["hycoclip@true"].boxes == "true"
    assert "clip@true" not in VARIANTS
    assert all(re.fullmatch(r"[\w.@-]+", key) and key == variant.key for key, variant in VARIANTS.items())
    assert len(MAIN_ROWS) == 2 * 15 + 8


@pytest.mark.parametrize("size", SIZES)
def test_the_rates_of_all_rows_of_a_size_are_those_of_a_row_that_exists(size: str) -> None:
    names = {f"{variant.tower}/{variant.row}" for variant in VARIANTS.values() if variant.boxes == "predicted"}
    assert {variant.choice for variant in rows_of(SIZES[size])} <= names
