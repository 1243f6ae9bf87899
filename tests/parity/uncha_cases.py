"""Inputs, terms and tolerances of the reference cases of `uncha.py`."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.parity import recipe
from tests.parity.model_cases import SIZES as SMALL_SIZES
from tests.parity.model_cases import head_inputs as one_box_inputs
from tests.parity.model_terms import relative_error
from tests.parity.report import Report
from trainer.batch import Batch, Losses, named_streams
from trainer.checkpoints.model import UNUSED
from trainer.losses.uncertainty import spread, uncertainty

SIZES = {size: {**settings, "embed_dim": 512} for size, settings in SMALL_SIZES.items()}
"""The width 512 is written into the authors' forward pass."""

TERMS = {  # name in the reference: name in `Losses.terms`, and the factor that the reference includes
    "contrastive_loss": ("contrastive", 1.0),
    "entailment_loss": ("entailment", 1.0),
    "global_contrastive_loss": ("contrastive/global", 1.0),
    "local_contrastive_loss": ("contrastive/local", 1.0),
    "global_local_contrastive_loss": ("contrastive/global_local", 1.0),
    "text_image_entailment_loss": ("entailment/text_image", 0.5),
    "box_text_image_entailment_loss": ("entailment/box_text_image", 0.5),
    "cross_image_entailment_loss": ("entailment/cross_image", 0.5),
    "cross_text_entailment_loss": ("entailment/cross_text", 0.5),
    "cross_image_calibration_loss": ("entailment/calibration_image", 10.0),
    "cross_text_calibration_loss": ("entailment/calibration_text", 10.0),
    "global_scale": ("global_logit_scale", 1.0),
    "local_scale": ("local_logit_scale", 1.0),
    "global_local_scale": ("global_local_logit_scale", 1.0),
    "curv": ("curvature", 1.0),
}
# Three times the relative gaps between the reference in float32 and in float64: of the loss, of its worst term, of the
# gradients by the features, and of those by the scalars. The other cases are rounding errors in float32.
GAPS = {
    "plain": (8.4e-7, 1.1e-5, 4.5e-6, 7e-5),
    "ragged": (8.4e-7, 1.1e-5, 4.5e-6, 7e-5),
    "clamp": (3.9e-6, 1.2e-4, 1.3e-5, 4.5e-5),
    "incone": (3e-6, 2.1e-3, 2e-3, 2e-3),
}
LOSS_GAPS = {"tiny": 1.4e-3, "identical": 3e-3, "micro": 3.6e-2}
FLOAT64 = {"tiny": 1e-6, "identical": 1e-5, "micro": 1e-4}
"""Relative tolerances in float64; 1e-7 for all others."""


def values(losses: Losses) -> dict[str, Tensor]:
    """The loss, its terms and the statistics of the uncertainties, by the names of the reference."""
    found = {"loss": losses.loss.detach()}
    found |= {name: factor * losses.terms[key] for name, (key, factor) in TERMS.items()}
    for side in ("image", "text"):
        u = uncertainty(losses.points[f"box_{side}"])
        found |= {f"entropy_{side}": spread(u), f"mean_uncertainty_{side}": u.mean()}
    return found


def compare_terms(
    report: Report, group: str, tolerance: float, losses: Losses, expected: dict[str, Any], case: str
) -> None:
    """Add the errors of all terms but the loss."""
    ours = values(losses)
    for name, value in expected.items():
        if name in ours and name != "loss":
            error = relative_error(ours[name].double().numpy(), value)
            report.add(group, tolerance, error, 0.0, floor=1.0, where=f"{case} {name}")


def compare_all(
    report: Report, group: str, tolerance: float, losses: Losses, expected: dict[str, Any], case: str
) -> None:
    """Add the errors of all terms and of the loss."""
    compare_terms(report, group, tolerance, losses, expected, case)
    compare_loss(report, group, tolerance, losses, expected, case)


def compare_loss(
    report: Report, group: str, tolerance: float, losses: Losses, expected: dict[str, Any], case: str
) -> None:
    """Add the relative error of the loss."""
    error = relative_error(losses.loss.detach().double().numpy(), expected["loss"])
    report.add(group, tolerance, error, 0.0, floor=1.0, where=case)


def learned(scalars: dict[str, Any]) -> dict[str, Any]:
    """The scalars without those that the reference has and does not use."""
    return {key: value for key, value in scalars.items() if key not in UNUSED}


def inputs(name: str, counts: list[int], seed: int) -> dict[str, np.ndarray]:
    """Features of a head case before the lift, in float32; `counts` are the boxes of each whole."""
    if not name.startswith("ragged"):
        return one_box_inputs(name, seed)
    b, m = len(counts), sum(counts)
    r = recipe.rng_for("head:ragged", seed)
    base = r.standard_normal((1, 512))
    t = base + 0.45 * r.standard_normal((b, 512))
    n, noise = r.standard_normal((b, 512)), r.standard_normal((2, m, 512))
    own = np.repeat(t, counts, axis=0)
    rows = (t, 0.6 * t + 0.9 * n, 0.5 * own + 0.4 * noise[0], 0.4 * own + 0.6 * noise[1])
    names = ("text", "image", "box_text", "box_image")
    return {key: row.astype(np.float32) for key, row in zip(names, rows, strict=True)}


def pairs_of(raw: dict[str, Tensor], counts: list[int]) -> Batch:
    """The features with the owners of the boxes."""
    owner = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return Batch(streams=named_streams({name: raw[name] for name in ("image", "text", "box_image", "box_text")}, owner))
