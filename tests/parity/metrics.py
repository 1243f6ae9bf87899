"""Compare evaluation metrics with the reference numbers: `python -m tests.parity.metrics FILE.npz`.

The reference numbers were computed with the authors' released code. The file holds features: no towers are used. The
exit code is 1 if a group exceeds its tolerance.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hypergrit_common.text import one_line
from tests.parity import metrics_hierarchy, metrics_paths
from tests.parity.cases import open_cases
from tests.parity.metrics_arrays import check_arrays
from tests.parity.report import Report, arguments_of
from tests.trainer.small import small_model
from trainer.evaluation.metrics.ranking import macro_accuracy, pessimistic_ranks, predict, recall_at
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import build_model

NAMES = ("clip", "meru", "phyclip")
INPUTS = ("zs/prompt_feats", "zs/labels", "zs/image_tangent", "zs/curvs", "zs/alphas", "retr/image_tangent")
POINTS = 2e-5
"""Tolerance of points and scores: the difference that the reference shows between float32 and float64."""
PERCENT = 1e-4
"""Tolerance of shares in percent: a single example of the file changes them by more than 1."""


def model_of(name: str, table: Any, meta: Mapping[str, Any]) -> DualEncoder:
    """A model with the curvature and alphas of the file. Its image tangents are scaled already: `visual_alpha` is 1."""
    width = table["zs/prompt_feats"].shape[-1]
    factors = {"factor_dim": meta["zs"]["d"]} if name == "phyclip" else {}
    model = build_model(name, dataclasses.replace(small_model(name).config, embed_dim=width, **factors))
    if name != "clip":
        product = name == "phyclip"
        curvature = torch.from_numpy(table["zs/curvs"]) if product else torch.tensor(meta["zs"]["curv"])
        alpha = torch.from_numpy(table["zs/alphas"]) if product else torch.tensor(meta["zs"]["textual_alpha"])
        scalars = {"curv": curvature.log(), "textual_alpha": alpha.log(), "visual_alpha": torch.zeros_like(alpha)}
        model.load_state_dict(model.state_dict() | scalars)
    return model.eval()


def rows_of(points: Tensor) -> Tensor:
    """Points [n d] of a product, from its factors [k n d/k]; other points unchanged."""
    return points.movedim(0, 1).flatten(1) if points.ndim == 3 else points


def inner_products(model: DualEncoder, queries: Tensor, candidates: Tensor) -> Tensor:
    """The scores of the released code: Lorentzian inner products where the model has a single hyperbolic space."""
    from trainer.geometry import lorentz
    from trainer.models.meru import MERU

    if isinstance(model, MERU) and queries.ndim == 2:
        return lorentz.pairwise_inner(queries, candidates, model.curvature())
    return model.scores(queries, candidates, "released")


@torch.no_grad()
def compare_zero_shot(name: str, report: Report, table: Any, meta: Mapping[str, Any]) -> None:
    """Class points, image points, scores, predictions and accuracies of zero-shot classification with one model."""
    labels, features = torch.from_numpy(table["zs/labels"]), torch.from_numpy(table["zs/image_tangent"])
    n_classes = len(table["zs/prompt_feats"])
    model, expected = model_of(name, table, meta), meta["zs"][name]
    classes, images = model.lift_prompts(torch.from_numpy(table["zs/prompt_feats"])), model.lift_image(features)
    group = f"zero-shot {name}"
    report.add(f"{group} classifier", POINTS, rows_of(classes), table[f"zs/{name}/classifier"])
    report.add(f"{group} images", POINTS, rows_of(images), table[f"zs/{name}/image_feats"])
    scores = table[f"zs/{name}/scores"]
    report.add(f"{group} scores", POINTS, inner_products(model, images, classes), scores)
    predicted = predict(model, features, classes, "released")
    report.check(f"{group} predictions", np.array_equal(predicted, scores.argmax(1)))
    accuracy = 100 * macro_accuracy(predicted, labels, n_classes)
    report.add(f"{group} accuracy", PERCENT, accuracy, expected["mean_per_class_accuracy"], floor=1.0)
    micro = 100 * (predicted == labels).double().mean().item()
    report.add(f"{group} plain accuracy", PERCENT, micro, expected["plain_accuracy"], floor=1.0)
    if name == "phyclip":
        report.add(
            f"{group} l1 distance",
            POINTS,
            -model.scores(images, classes, "metric") * meta["zs"]["k"],
            table["zs/phyclip/l1_distance"],
        )
        by_metric = predict(model, features, classes, "metric")
        accuracy = 100 * macro_accuracy(by_metric, labels, n_classes)
        report.add(f"{group} accuracy by l1", PERCENT, accuracy, expected["with_l1_distance_instead"], floor=1.0)
        differ = int((by_metric != predicted).sum())
        report.check(f"{group} rankings differ", differ == expected["argmax_disagreements"], str(differ))


@torch.no_grad()
def compare_retrieval(name: str, report: Report, table: Any, meta: Mapping[str, Any]) -> None:
    """Scores and recalls of retrieval in both directions with one model."""
    image_features, text_features = (torch.from_numpy(table[f"retr/{part}_tangent"]) for part in ("image", "text"))
    owner, own = torch.from_numpy(table["retr/owner"]), torch.arange(len(image_features))
    model = model_of(name, table, meta)
    # The tangents of the captions are scaled already, too: `lift_image` has no scale.
    image, text = model.lift_image(image_features), model.lift_image(text_features)
    for direction, queries, candidates, query_ids, candidate_ids in (
        ("t2i", text, image, owner, own),
        ("i2t", image, text, own, owner),
    ):
        group = f"retrieval {name} {direction}"
        scores = inner_products(model, queries, candidates)
        report.add(f"{group} scores", POINTS, scores, table[f"retr/{name}/{direction}_scores"])
        prefix = f"{direction}_r"
        expected = {
            int(key.removeprefix(prefix)): value
            for key, value in meta["retrieval"][name].items()
            if key.startswith(prefix)
        }

        def score(x: Tensor, y: Tensor, model: DualEncoder = model) -> Tensor:
            return model.scores(x, y, "released")

        ranks = pessimistic_ranks(score, queries, candidates, query_ids, candidate_ids)
        for k, share in recall_at(ranks, expected).items():
            report.add(f"{group} recall", PERCENT, 100 * share, expected[k], floor=1.0, where=f"k = {k}")


def compare_hierarchy(report: Report, table: Any, meta: Mapping[str, Any]) -> None:
    """Hierarchical metrics of the released rule (`hier/*`)."""
    for name, error, tolerance in metrics_hierarchy.check(table):
        report.add(name, tolerance, error, 0.0, floor=1.0)


def compare_traversal(report: Report, table: Any, meta: Mapping[str, Any]) -> None:
    """Traversals and interpolations (`trav/*`)."""
    for name, error, tolerance in metrics_paths.check(table):
        report.add(name, tolerance, error, 0.0, floor=1.0)


COMPARISONS: dict[str, Callable[[Report, Any, Mapping[str, Any]], None]] = {
    **{f"zero-shot {name}": partial(compare_zero_shot, name) for name in NAMES},
    **{f"retrieval {name}": partial(compare_retrieval, name) for name in NAMES},
    "hierarchy": compare_hierarchy,
    "traversal": compare_traversal,
}


def compare(table: Any) -> Report:
    """Compare everything in the file `table`. An error of a comparison is a failed group."""
    report, meta = Report(), json.loads(str(table["meta_json"]))
    check_arrays(report, table)
    for name, comparison in COMPARISONS.items():
        try:
            comparison(report, table, meta)
        except KeyError as error:
            report.check("missing entries", False, f"{name}: {error}")
        except Exception as error:
            report.check(name, False, f"{type(error).__name__}: {one_line(error)}")
    return report


def main(given: Sequence[str]) -> int:
    """Compare the file, print the report and return the exit code."""
    path, _ = arguments_of(given, __doc__)
    table, _ = open_cases(path, "file of evaluation metrics", INPUTS, ("zs", "retrieval"))
    return compare(table).conclude()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
