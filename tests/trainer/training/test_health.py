"""Warnings about runs that do not learn, each on a run that provokes it."""

import logging
import math
from pathlib import Path

import pytest
import torch

from tests.trainer.small import small_batch, small_model
from tests.trainer.small_run import run, small_config, small_run
from trainer.models.registry import MODELS
from trainer.training.health import Health, collapse, dead_terms
from trainer.training.step import update
from trainer.training.writers import named_values


def messages_of_a_run(tmp_path: Path, *others: str) -> list[str]:
    """Train for 20 steps, and return the warnings."""
    found = small_run(tmp_path / "run", "optim.warmup_steps=0", *others)
    health, batches = Health(found), iter(found.loader)
    return [text for _ in range(20) for text in health.check(found.step, update(found, next(batches)))]


def messages_of_one_batch(tmp_path: Path, *others: str) -> list[str]:
    """Train CLIP on a single batch, which it learns by heart, and return the warnings."""
    found = small_run(tmp_path / "run", "steps=60", "optim.warmup_steps=0", "model_name=clip", "lr=0.003", *others)
    batch, health, messages = small_batch(), Health(found), []
    for _ in range(50):
        messages += health.check(found.step, update(found, batch))
    return messages


def test_a_run_that_learns_has_no_warning(tmp_path: Path) -> None:
    assert messages_of_one_batch(tmp_path) == []


@pytest.mark.parametrize(
    ("settings", "chance"),
    [
        ([], "2.079"),
        (["model.contrast_terms.image=0"], "1.560"),
        (["model.box_candidates=paper", "data.boxes=all"], "2.079"),
    ],
)
def test_a_learning_rate_that_is_too_high_is_reported_as_a_collapse(
    tmp_path: Path, settings: list[str], chance: str
) -> None:
    found = messages_of_a_run(tmp_path, "lr=0.3", *settings)[0]
    assert f"as if all points were equal ({chance} for 8 candidates)" in found
    assert "lower optim.lr" in found


@pytest.mark.parametrize("boxes", [0.0, 0.5, 1.0])
def test_a_collapse_is_measured_by_the_boxes_that_are_pairs(tmp_path: Path, boxes: float) -> None:
    config = small_config(tmp_path / "run", "model_name=meru", "model.boxes_as_pairs=true", "batch_size=512")
    n = 512 * (1 + boxes)
    (problem,) = collapse({"loss/contrastive": math.log(n), "data/boxes_per_sample": boxes}, config)
    assert f"for {n:.0f} candidates" in problem.message
    assert not [*collapse({"loss/contrastive": math.log(0.9 * n), "data/boxes_per_sample": boxes}, config)]


def test_a_pinned_temperature_is_reported(tmp_path: Path) -> None:
    (message,) = messages_of_one_batch(tmp_path, "model.temperature_init=1", "model.max_logit_scale=1.05")
    assert "geometry/logit_scale is at its limit, 1.05," in message
    assert "model.max_logit_scale" in message


def test_a_pinned_curvature_is_reported(tmp_path: Path) -> None:
    found = "".join(messages_of_a_run(tmp_path, "model.curv_max_ratio=1.01"))
    assert "geometry/curvature is at its limit, 0.990099" in found
    assert "model.curv_max_ratio" in found


def test_a_loss_term_without_gradient_is_reported(tmp_path: Path) -> None:
    found = "".join(messages_of_a_run(tmp_path, "model.eta_inter=1000"))  # every point is inside such cones
    assert "loss/entailment/text_image is zero and has no gradient" in found


@pytest.mark.parametrize("name", MODELS)
def test_shares_of_pairs_are_no_dead_loss_terms(tmp_path: Path, name: str) -> None:
    model = small_model(name, **({"factor_dim": 8} if name == "phyclip" else {}))
    with torch.no_grad():
        values = dict.fromkeys(named_values(model(small_batch())), 0.0)
    shares = {term for term in values if term.startswith("loss/") and term.endswith(("satisfied", "image_entails"))}
    assert shares == {f"loss/{term}" for term in model.shares}
    dead = {problem.key.removeprefix("dead ") for problem in dead_terms(values, model.shares)}
    assert dead == {term for term in values if term.startswith("loss/")} - shares
    assert "loss/contrastive" in dead


def test_a_loss_of_a_few_candidates_is_no_collapse(tmp_path: Path) -> None:
    values = {"loss/contrastive": math.log(4)}
    assert not list(collapse(values, small_config(tmp_path / "run", "batch_size=4")))
    assert list(collapse({"loss/contrastive": math.log(8)}, small_config(tmp_path / "run")))


def test_the_end_of_a_run_is_a_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert run(tmp_path / "run", "steps=3") == 0
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("model saved")]
    assert line.startswith(f"model saved in {tmp_path}/run/model after 3 steps; ")
    assert line.endswith(" samples read by this process")
