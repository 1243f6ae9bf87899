"""Results equal those of the authors' evaluation code, stored in tests/parity/data/metrics.npz (see its meta_json)."""

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parity.report import read
from tests.trainer.small import small_model
from trainer.evaluation.metrics.ranking import macro_accuracy, pessimistic_ranks, predict, recall_at
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import build_model

NAMES = ("clip", "meru", "phyclip")


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    table, meta = read("metrics")
    return {name: torch.from_numpy(table[name]) for name in table if name.startswith(("zs/", "retr/"))} | {"meta": meta}


def model_of(name: str, stored: dict[str, Any]) -> DualEncoder:
    """A model with the curvature and alphas of the file. The towers are not used: the file holds features.

    Its image tangents are scaled already: `visual_alpha` is 1.
    """
    factors = {"factor_dim": 4} if name == "phyclip" else {}
    model = build_model(name, dataclasses.replace(small_model(name).config, embed_dim=24, **factors))
    if name != "clip":
        meta = stored["meta"]["zs"]
        product = name == "phyclip"
        curvature = stored["zs/curvs"] if product else torch.tensor(meta["curv"])
        alpha = stored["zs/alphas"] if product else torch.tensor(meta["textual_alpha"])
        model.load_state_dict(
            model.state_dict()
            | {"curv": curvature.log(), "textual_alpha": alpha.log(), "visual_alpha": torch.zeros_like(alpha)}
        )
    return model.eval()


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_zero_shot_scores_and_accuracy_equal_the_reference(name: str, stored: dict[str, Any]) -> None:
    model, meta = model_of(name, stored), stored["meta"]["zs"][name]
    classes = model.lift_prompts(stored["zs/prompt_feats"])
    assert_close(joined(classes), stored[f"zs/{name}/classifier"])
    images, labels = stored["zs/image_tangent"], stored["zs/labels"]
    assert_close(joined(model.lift_image(images)), stored[f"zs/{name}/image_feats"])
    scores = model.scores(model.lift_image(images), classes, "released")
    if name == "phyclip":  # the scores of the others rank equally, but have other values
        assert_close(scores, stored[f"zs/{name}/scores"])
    predicted = predict(model, images, classes, "released")
    assert predicted.equal(stored[f"zs/{name}/scores"].argmax(1))
    assert 100 * macro_accuracy(predicted, labels, 9) == pytest.approx(meta["mean_per_class_accuracy"], abs=1e-4)
    assert 100 * (predicted == labels).float().mean().item() == pytest.approx(meta["plain_accuracy"], abs=1e-4)


@torch.no_grad()
def test_phyclip_ranked_by_its_metric_predicts_other_classes(stored: dict[str, Any]) -> None:
    model, meta = model_of("phyclip", stored), stored["meta"]["zs"]["phyclip"]
    classes = model.lift_prompts(stored["zs/prompt_feats"])
    by_metric = predict(model, stored["zs/image_tangent"], classes, "metric")
    assert by_metric.equal(stored["zs/phyclip/l1_distance"].argmin(1))
    by_release = predict(model, stored["zs/image_tangent"], classes, "released")
    assert int((by_metric != by_release).sum()) == meta["argmax_disagreements"]
    accuracy = 100 * macro_accuracy(by_metric, stored["zs/labels"], 9)
    assert accuracy == pytest.approx(meta["with_l1_distance_instead"], abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_retrieval_recalls_equal_the_reference(name: str, stored: dict[str, Any]) -> None:
    model, ks = model_of(name, stored), (1, 2, 3, 5, 10)
    image, text = model.lift_image(stored["retr/image_tangent"]), model.lift_image(stored["retr/text_tangent"])
    score = partial(model.scores, ranking="released")
    owners, ids = stored["retr/owner"], torch.arange(len(stored["retr/image_tangent"]))
    ranks = {
        "t2i": pessimistic_ranks(score, text, image, owners, ids),
        "i2t": pessimistic_ranks(score, image, text, ids, owners),
    }
    expected = stored["meta"]["retrieval"][name]
    if name != "meru":  # whose ranking has other values
        assert_close(score(text, image), stored[f"retr/{name}/t2i_scores"])
        assert_close(score(image, text), stored[f"retr/{name}/i2t_scores"])
    for direction, found in ranks.items():
        shares = {k: 100 * share for k, share in recall_at(found, ks).items()}
        assert shares == pytest.approx({k: expected[f"{direction}_r{k}"] for k in ks}, abs=1e-4)


def joined(lifted: Tensor) -> Tensor:
    """Points [c d] of a product, from its factors [k c d/k]; other points unchanged."""
    return lifted.movedim(0, 1).flatten(1) if lifted.ndim == 3 else lifted


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
