"""Rows of the miniature study: a row with a paper's name has its loss and constants, and the trainer accepts all settings."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from demo.paper.plan import MAIN, SIZES, VARIANTS, Variant
from demo.paper.run import Study, Trial
from trainer.config import TrainConfig
from trainer.models.registry import MODELS

MAIN_ROWS = [variant for variant in VARIANTS.values() if variant.table == MAIN]
FEATURES = {"width": 192, "hidden": 512, "depth": 1}


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study with features, as far as a configuration reads them."""
    tower = {"name": "cached", "weights": "demo/weights/clip", "kwargs": FEATURES}
    training = {"tokenizer": "demo/weights/clip/merges.txt", "model": {"image": tower, "text": tower}}
    record = {"training": training}
    monkeypatch.setattr("trainer.config.read_records", lambda _: [record])
    monkeypatch.chdir(Path(__file__).parents[3])
    return Study(size=SIZES["full"], out=Path("out"), data=Path("data"))


def config_of(study: Study, variant: Variant) -> TrainConfig:
    return Trial(study=study, variant=variant, seed=0, lr=1e-3, at=(1000,)).config


def test_rows_with_the_name_of_a_model_have_the_papers_loss_and_constants(study: Study) -> None:
    named = [variant for variant in MAIN_ROWS if variant.title == MODELS[variant.model].title]
    assert {variant.model for variant in named} == set(MODELS) - {"hyper3", "taxonomy"}
    for variant in named:
        found = asdict(config_of(study, variant).model)
        default = asdict(MODELS[variant.model].config())
        differing = {key for key in default if found[key] != default[key]} - {"image", "text"}
        assert differing == {"embed_dim"}, variant


def test_all_rows_are_accepted_and_no_two_are_the_same(study: Study) -> None:
    seen = {}
    for variant in VARIANTS.values():
        config = config_of(study, variant)
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
    assert {variant.choice for variant in SIZES[size].seeds_of} <= names
