"""Comparison of loss terms and learned scalars with the reference numbers."""

import math
from typing import Any

import numpy as np
from torch import Tensor

from tests.parity.report import Report
from tests.trainer.released_files import to_released
from trainer.batch import Losses
from trainer.checkpoints.model import FACTOR_SCALARS
from trainer.models.dual_encoder import DualEncoder
from trainer.models.phyclip import PHyCLIP

TERMS = {  # name in the reference: name in `Losses.terms`
    "contrastive_loss": "contrastive",
    "entailment_loss": "entailment",
    "text_image_entailment_loss": "entailment/text_image",
    "box_text_image_entailment_loss": "entailment/box_text_image",
    "cross_image_entailment_loss": "entailment/cross_image",
    "cross_text_entailment_loss": "entailment/cross_text",
    "logit_scale": "logit_scale",
    "curv": "curvature",
}


def compare_terms(
    report: Report,
    group: str,
    tolerance: float,
    losses: Losses,
    expected: dict[str, Any],
    case: str,
    expected_float64: dict[str, Any] | None = None,
) -> None:
    """Add the errors of the loss and its terms against the reference's numbers `expected` or `expected_float64`.

    The nearer of the two counts, because the float32 numbers of the reference contain its own rounding errors.
    """
    ours = {"loss": losses.loss} | {name: losses.terms[key] for name, key in TERMS.items() if key in losses.terms}
    for name in {"loss"} | (ours.keys() & expected.keys()):
        value = ours[name].detach().double().numpy()
        references = [numbers for numbers in (expected, expected_float64) if numbers is not None]
        nearest = min(relative_error(value, numbers.get(name, math.nan)) for numbers in references)
        report.add(group, tolerance, nearest, 0.0, floor=1.0, where=f"{case} {name}")


def relative_error(ours: np.ndarray, theirs: Any) -> float:
    """Largest error relative to max(|expected|, 1e-4); infinite for a different shape."""
    expected = np.asarray(theirs, np.float64)
    if ours.shape != expected.shape:
        return math.inf
    return float((np.abs(ours - expected) / np.maximum(np.abs(expected), 1e-4)).max())


def compare_scalars(report: Report, group: str, model: DualEncoder, expected: dict[str, Any], where: str) -> None:
    """Add the errors of the learned scalars."""
    ours = used_scalars(model)
    for key in ours.keys() & expected.keys():
        report.add(group, 1e-6, ours[key], expected[key], where=f"{where} {key}")


def used_scalars(model: DualEncoder) -> dict[str, Tensor]:
    """State dict in the released layout, for PHyCLIP without the scalars of MERU, which are not used."""
    unused = set(FACTOR_SCALARS) if isinstance(model, PHyCLIP) else set()
    return {key: value for key, value in to_released(model).items() if key not in unused}
