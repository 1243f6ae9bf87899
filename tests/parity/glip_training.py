"""ATSS, losses and gradients of our GLIP against the authors' numbers."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.ground.glip.atss import assign
from pipeline.ground.glip.loss import Losses, Target, glip_loss
from pipeline.ground.glip.model import Glip, GlipOutput

LOSSES = {"token": "loss_dot_product_token", "box": "loss_reg", "centerness": "loss_centerness"}
GRADIENT_BAR = 1e-3
PERTURBATION = 3e-5  # of a pixel's value: what rounding makes of the features in the middle of the tower

Inputs = tuple[Tensor, Tensor, Tensor]  # images, ids, mask


def positive_map(meta: dict[str, Any], length: int) -> Tensor:
    """Bool [labels, length] of the case's phrases."""
    rows = torch.zeros(len(meta["phrases"]), length, dtype=torch.bool)
    for label, tokens in meta["phrases"].items():
        rows[int(label) - 1, tokens] = True
    return rows


def compare_training(
    stored: Any, meta: dict[str, Any], model: Glip, inputs: Inputs, output: GlipOutput
) -> list[tuple[str, float, float]]:
    """(name, error, bar) of the assignment, the losses and the gradients."""
    boxes, labels = torch.tensor(meta["gt_boxes"]), torch.tensor(meta["gt_labels"])
    owner = assign(output.anchors, boxes, model.config.loss.candidates)
    assigned = torch.cat([labels, labels.new_zeros(1)])[owner].numpy()
    results = [("ATSS assignment, anchors that differ", float((assigned != stored["assigned"]).sum()), 0.0)]
    losses = _losses(model, output, inputs, meta)
    for name, key in LOSSES.items():
        wanted = meta["loss"][key]
        results.append((f"loss {name} (relative)", abs(getattr(losses, name).item() - wanted) / abs(wanted), 1e-5))
    keys, norms = [str(key).removeprefix("module.") for key in stored["grad.key"]], stored["grad.norm"]
    return results + _gradients(model, inputs, meta, keys, norms, _norms(model, losses, keys))


def _losses(model: Glip, output: GlipOutput, inputs: Inputs, meta: dict[str, Any]) -> Losses:
    mask = inputs[2]
    rows = positive_map(meta, mask.shape[1])[torch.tensor(meta["gt_labels"]) - 1]
    return glip_loss(output, mask, [Target(boxes=torch.tensor(meta["gt_boxes"]), tokens=rows)], model.config)


def _norms(model: Glip, losses: Losses, keys: list[str]) -> NDArray[np.float64]:
    """Norm of each gradient, -1 where there is none."""
    model.zero_grad(set_to_none=True)
    losses.total.backward()
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    norms = [-1.0 if (gradient := gradients[key]) is None else float(gradient.double().norm()) for key in keys]
    return np.array(norms)


def _gradients(
    model: Glip,
    inputs: Inputs,
    meta: dict[str, Any],
    keys: list[str],
    wanted: NDArray[np.float64],
    found: NDArray[np.float64],
) -> list[tuple[str, float, float]]:
    """Relative errors of the gradients' norms: the worst, or, where rounding decides, three quantiles.

    The gradient jumps wherever a sampling position crosses a pixel or an activation its kink. With the recipe's weights,
    whose fused tower magnifies rounding, some norms (a sum of few terms that nearly cancel, such as AttnConv's bias) move
    by far more than the bar when the image changes in its last bits, and so differ between any two orders of summation.
    Where a norm is past the bar, the movement of all of them under such a change is measured, and the errors may be
    distributed like it. A wrong operator moves its parameters in every round, and by much more.
    """
    whole = np.linalg.norm(wanted)
    scale = np.maximum(np.abs(wanted), 1e-9 * whole)
    error = np.abs(found - wanted) / scale
    error[(wanted < 0) != (found < 0)] = np.inf
    # a key projection's bias cancels in the softmax: its gradient is rounding alone
    is_rounding = np.array([key.endswith("key.bias") for key in keys]) & (found < 1e-8 * whole)
    error[is_rounding] = 0.0
    worst = int(error.argmax())
    if error[worst] <= GRADIENT_BAR:
        return [(f"gradient norm (relative), worst: {keys[worst]}", float(error[worst]), GRADIENT_BAR)]
    images, ids, mask = inputs
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    noisy = (images * (1 + PERTURBATION * noise), ids, mask)
    moved = _norms(model, _losses(model, model(*noisy), noisy, meta), keys)
    spread = np.where(is_rounding, 0.0, np.abs(moved - found) / scale)
    n_past = int((error > GRADIENT_BAR).sum())
    rows = [(f"gradient norm (relative), median; {n_past} past 1e-3", float(np.median(error)), GRADIENT_BAR)]
    for share in (0.9, 0.99):
        bar = GRADIENT_BAR + 3 * float(np.quantile(spread, share))
        rows.append((f"gradient norm (relative), {share:.0%} quantile", float(np.quantile(error, share)), bar))
    return rows
