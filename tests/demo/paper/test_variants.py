"""Rows of the miniature study: every registered model, and settings that the trainer accepts."""

from pathlib import Path

import pytest

import demo.paper.variants as module
from demo.paper.plan import MEASURED, plan
from demo.paper.results import claims
from demo.paper.sizes import SIZES
from demo.paper.tables import DESIGNS, REFERENCE
from demo.paper.variants import VARIANTS, variants_of
from trainer.config import load_config
from trainer.models.config import HyCoCLIPConfig
from trainer.models.registry import MODELS, ModelEntry

ROOT = Path(__file__).parents[3]


def test_every_model_has_a_row_and_every_entailment_loss_a_row_without_it() -> None:
    assert {variant.model for variant in VARIANTS.values()} == set(MODELS)
    assert {key for key in VARIANTS if key.startswith(("clip", "hycoclip"))} == {
        "clip",
        "clip-boxes",
        "hycoclip",
        "hycoclip-no-boxes",
        "hycoclip-no-entailment",
    }
    with_entailment = {name for name in MODELS if f"{name}-no-entailment" in VARIANTS}
    assert with_entailment == set(MODELS) - {"clip", "atmg"}


def test_a_new_entry_of_the_registry_gets_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ModelEntry(HyCoCLIPConfig, "trainer.models.new:NewCLIP")
    monkeypatch.setattr(module, "MODELS", {**MODELS, "new": entry})
    monkeypatch.setattr("demo.train_demo.MODELS", {**MODELS, "new": entry})
    assert [variant.title for variant in variants_of("new")] == [
        "NewCLIP",
        "NewCLIP without boxes",
        "NewCLIP without entailment",
    ]


@pytest.mark.rest
@pytest.mark.parametrize("size", SIZES)
def test_the_trainer_accepts_the_settings_of_every_step(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    runs = plan(tmp_path, tmp_path, SIZES[size], {}, workers=0)
    n_rows = len(SIZES[size].variants or VARIANTS)
    assert len(runs) == n_rows * SIZES[size].seeds
    trainings = [run.training for run in runs]
    for step in trainings[:n_rows]:
        config = load_config(list(step.command[3:]))
        assert config.optim.steps == SIZES[size].steps
        assert config.model.boxes_as_pairs == (step.name in ("train-clip-boxes-0", "train-meru-boxes-0"))
    seeds = {argument for step in trainings for argument in step.command if "seed=" in argument}
    assert seeds == {f"{key}={seed}" for key in ("seed", "data.seed") for seed in range(SIZES[size].seeds)}


def test_rows_without_entailment_have_no_entailment_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    runs = [run for run in plan(tmp_path, tmp_path, SIZES["full"], {}, workers=0) if run.seed == 0]
    without = [run.training for run in runs if run.variant.key.endswith("no-entailment")]
    assert len(without) == len(MODELS) - 2  # CLIP and ATMG have none
    for step in without:
        assert getattr(load_config(list(step.command[3:])).model, "entail_weight") == 0  # noqa: B009


def test_claims_name_rows_and_metrics_that_exist() -> None:
    columns = {name for design in DESIGNS for name in design.columns}
    assert REFERENCE in VARIANTS
    assert len({(claim.paper, claim.text) for claim in claims()}) == len(claims())
    for claim in claims():
        assert claim.metric in columns, claim
        assert claim.metric.partition(":")[0] in MEASURED
        assert {claim.first, claim.second or claim.first} <= VARIANTS.keys(), claim
        assert claim.first != claim.second
        assert claim.paper in ("MERU", "HyCoCLIP", "PHyCLIP", "PoinCLIP", "Syntax-MERU", "UNCHA")
