"""ATSS, losses and gradients of our GLIP against the authors' numbers."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.ground.glip.atss import assign
from pipeline.ground.glip.loss import Losses, Target, glip_loss
from pipeline.ground.glip.model import Glip

LOSSES = {"token": "loss_dot_product_token", "box": "loss_reg", "centerness": "loss_centerness"}
GRADIENT_BAR = 1e-3
N_PERTURBATIONS = 3
PERTURBATION = 1e-5  # of a pixel's value: what rounding makes of the features in the middle of the tower

Inputs = tuple[Tensor, Tensor, Tensor]  # images, ids, mask


def positive_map(meta: dict[str, Any], length: int) -> Tensor:
    """Bool [labels, length] of the case's phrases."""
    rows = torch.zeros(len(meta["phrases"]), length, dtype=torch.bool)
    for label, tokens in meta["phrases"].items():
        rows[int(label) - 1, tokens] = True
    return rows


def compare_training(stored: Any, meta: dict[str, Any], model: Glip, inputs: Inputs) -> list[tuple[str, float, float]]:
    """(name, error, bar) of the assignment, the losses and the worst gradient."""
    losses, labels = _losses(model, inputs, meta)
    results = [("ATSS assignment, anchors that differ", float((labels.numpy() != stored["assigned"]).sum()), 0.0)]
    for name, key in LOSSES.items():
        wanted = meta["loss"][key]
        results.append((f"loss {name} (relative)", abs(getattr(losses, name).item() - wanted) / abs(wanted), 1e-5))
    keys, wanted = [str(key).removeprefix("module.") for key in stored["grad.key"]], stored["grad.norm"]
    error, bar = _gradient_errors(model, inputs, meta, keys, wanted, _norms(model, losses, keys))
    worst = int((error - bar).argmax())
    is_past = f"{int((error > GRADIENT_BAR).sum())} of {len(keys)} past {GRADIENT_BAR}"
    return [*results, (f"gradient norm (relative), worst at {keys[worst]}; {is_past}", error[worst], bar[worst])]


def _losses(model: Glip, inputs: Inputs, meta: dict[str, Any]) -> tuple[Losses, Tensor]:
    """The losses, and each anchor's label."""
    images, ids, mask = inputs
    output = model(images, ids, mask)
    boxes, labels = torch.tensor(meta["gt_boxes"]), torch.tensor(meta["gt_labels"])
    target = Target(boxes=boxes, tokens=positive_map(meta, mask.shape[1])[labels - 1])
    owner = assign(output.anchors, boxes, model.config.loss.candidates)
    assigned = torch.cat([labels, labels.new_zeros(1)])[owner]
    return glip_loss(output, mask, [target], model.config), assigned


def _norms(model: Glip, losses: Losses, keys: list[str]) -> NDArray[np.float64]:
    """Norm of each gradient, -1 where there is none."""
    model.zero_grad(set_to_none=True)
    losses.total.backward()
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    norms = [-1.0 if (gradient := gradients[key]) is None else float(gradient.double().norm()) for key in keys]
    return np.array(norms)


def _gradient_errors(
    model: Glip,
    inputs: Inputs,
    meta: dict[str, Any],
    keys: list[str],
    wanted: NDArray[np.float64],
    found: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Relative error of each norm, and its bar.

    The gradient jumps wherever a sampling position crosses a pixel or an activation its kink. With the recipe's weights,
    whose fused towers magnify rounding, some norms (a sum of few terms that nearly cancel, such as AttnConv's bias) move
    by far more than the bar when the image changes in its last bits. Where the bar is passed, that movement is measured
    and allowed on top.
    """
    # a key projection's bias cancels in the softmax: its gradient is rounding alone, measured against the whole
    scale = np.maximum(np.abs(wanted), 1e-9 * np.linalg.norm(wanted))
    error = np.abs(found - wanted) / scale
    error[(wanted < 0) != (found < 0)] = np.inf
    is_bias = np.array([key.endswith("key.bias") for key in keys])
    error[is_bias & (found < 1e-8 * np.linalg.norm(wanted))] = 0.0
    bar = np.full(len(keys), GRADIENT_BAR)
    if (error <= bar).all():
        return error, bar
    images, ids, mask = inputs
    generator = torch.Generator().manual_seed(0)
    spread = np.zeros(len(keys))
    for _ in range(N_PERTURBATIONS):
        noisy = images * (1 + PERTURBATION * torch.randn(images.shape, generator=generator))
        moved = _norms(model, _losses(model, (noisy, ids, mask), meta)[0], keys)
        spread = np.maximum(spread, np.abs(moved - found) / scale)
    return error, bar + 3 * spread
