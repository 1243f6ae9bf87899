"""Compare the assignment of anchors, the losses and the gradients with the authors' numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypergrit_common.errors import UserError
from pipeline.stages.ground.glip.model import Glip, GlipOutput
from pipeline.stages.ground.glip.training.loss import Losses, Target, assign, glip_loss
from tests.parity.glip_case import Stored
from tests.parity.glip_kinks import Sampling

LOSSES = {"token": "loss_dot_product_token", "box": "loss_reg", "centerness": "loss_centerness"}
GRADIENT_TOLERANCE = 1e-3
ROUNDED = 1e-5  # size of the terms of a gradient that cancels to 0, relative to the norm of all gradients
ROUNDINGS = ((False, 1), (True, 1), (True, 2))  # (uses oneDNN, number of threads)
MAX_KINKS = 8  # maximum number of sampling positions that are moved to the other side of their pixel

Inputs = tuple[Tensor, Tensor, Tensor]  # images, ids, mask
Norms = NDArray[np.float64]


def positive_map(meta: dict[str, Any], length: int) -> Tensor:
    """The positive map of the case's phrases, bool [labels, length]."""
    rows = torch.zeros(len(meta["phrases"]), length, dtype=torch.bool)
    for label, tokens in meta["phrases"].items():
        rows[int(label) - 1, [token for token in tokens if token < length]] = True
    return rows


def compare_training(
    stored: Stored, meta: dict[str, Any], model: Glip, inputs: Inputs, output: GlipOutput
) -> list[tuple[str, float, float]]:
    """(name, error, tolerance) of the assignment, the losses and the gradients.

    Raises UserError if a stored array does not fit.
    """
    boxes, labels = _truth(meta)
    owner = assign(output.anchors, boxes, model.config.loss.candidates)
    assigned = torch.cat([labels, labels.new_zeros(1)])[owner].numpy()
    if assigned.shape != stored["assigned"].shape:
        raise UserError(f"its `assigned` has {stored['assigned'].shape} anchors instead of {assigned.shape}")
    results = [("ATSS assignment, anchors that differ", float((assigned != stored["assigned"]).sum()), 0.0)]
    losses = _losses(model, output, inputs, meta)
    for name, key in LOSSES.items():
        expected = meta["loss"][key]
        error = abs(getattr(losses, name).item() - expected) / max(
            abs(expected), 1e-12
        )  # without positive anchors the loss is 0
        results.append((f"loss {name} (relative)", error, 1e-5))
    keys, norms = [str(key).removeprefix("module.") for key in stored["grad.key"]], stored["grad.norm"]
    unknown = set(keys) - dict(model.named_parameters()).keys()
    if unknown or len(keys) != len(norms):
        raise UserError(
            f"its gradients do not fit the network: {len(keys)} keys, {len(norms)} norms, unknown {sorted(unknown)[:3]}"
        )
    return results + _gradients(model, inputs, meta, keys, norms)


def _truth(meta: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The true boxes [g, 4] and their labels [g], which count from 1."""
    return torch.tensor(meta["gt_boxes"], dtype=torch.float32).view(-1, 4), torch.tensor(meta["gt_labels"]).long()


def _losses(model: Glip, output: GlipOutput, inputs: Inputs, meta: dict[str, Any]) -> Losses:
    mask, (boxes, labels) = inputs[2], _truth(meta)
    target = Target(boxes=boxes, tokens=positive_map(meta, mask.shape[1])[labels - 1])
    return glip_loss(output, mask, [target], model.config)


def _gradients(
    model: Glip, inputs: Inputs, meta: dict[str, Any], keys: list[str], expected: Norms
) -> list[tuple[str, float, float]]:
    """The largest relative error of the gradients' norms.

    At a kink (see glip_kinks.py), rounding decides which of two gradients is computed, and ours can differ from that of
    the reference; with the recipe's weights, one of 10^6 positions affects the gradients of all earlier layers. If a
    norm is beyond the tolerance, the float32 network is run again with other roundings (without oneDNN, with other
    numbers of threads), and then with each of the few positions that rounding can move to the other side of a pixel. In
    one of these runs, all norms must be within the tolerance.
    """
    with Sampling() as sampling:
        error = norm_errors(_norms(model, inputs, meta, keys), keys, expected)
    side = ""
    for one_dnn, threads in ROUNDINGS if error.max() > GRADIENT_TOLERANCE else ():
        with rounding(one_dnn, threads):
            other = norm_errors(_norms(model, inputs, meta, keys), keys, expected)
        if other.max() < error.max():
            error, side = other, f" (oneDNN {'on' if one_dnn else 'off'}, threads: {threads})"
        if error.max() <= GRADIENT_TOLERANCE:
            break
    for kink in sampling.kinks()[:MAX_KINKS] if error.max() > GRADIENT_TOLERANCE else []:
        with Sampling(kink):
            other = norm_errors(_norms(model, inputs, meta, keys), keys, expected)
        if other.max() < error.max():
            error, side = other, f" (other side of {kink})"
        if error.max() <= GRADIENT_TOLERANCE:
            break
    return [
        (f"gradient norm (relative), worst: {keys[int(error.argmax())]}{side}", float(error.max()), GRADIENT_TOLERANCE)
    ]


@contextmanager
def rounding(one_dnn: bool, threads: int) -> Iterator[None]:
    """Compute sums in another order, which rounds them differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.backends.mkldnn.flags(enabled=one_dnn):
            yield
    finally:
        torch.set_num_threads(before)


def _norms(model: Glip, inputs: Inputs, meta: dict[str, Any], keys: list[str]) -> tuple[Norms, Norms]:
    """Norms of the gradients (-1: no gradient), and their scales.

    The scale of a bias of AttnConv is the sum of its absolute terms, that of other gradients is the norm.
    """
    model.zero_grad(set_to_none=True)
    terms: dict[str, list[Tensor]] = {}
    handles = []
    for name, module in model.named_modules():
        if name.endswith(".AttnConv.1"):
            outputs = terms.setdefault(f"{name}.bias", [])
            handles.append(
                module.register_forward_hook(lambda _, __, out, outputs=outputs: _keep_gradient(out, outputs))
            )
    _losses(model, model(*inputs), inputs, meta).total.backward()
    for handle in handles:
        handle.remove()
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    norms = [-1.0 if (gradient := gradients[key]) is None else float(gradient.double().norm()) for key in keys]
    sums = {
        key: sum(float(out.grad.abs().sum()) for out in outs if out.grad is not None) for key, outs in terms.items()
    }
    return np.array(norms), np.array([sums.get(key, norm) for key, norm in zip(keys, norms, strict=True)])


def _keep_gradient(out: Tensor, outputs: list[Tensor]) -> None:
    out.retain_grad()
    outputs.append(out)


def norm_errors(found: tuple[Norms, Norms], keys: list[str], expected: Norms) -> Norms:
    """Relative errors of the norms `found`, which `_norms` returned with the scale of their terms.

    The gradient of AttnConv's bias is a sum of terms of both signs, one per cell: its error is relative to the sum of
    their absolute values. The bias of a key projection cancels in the softmax, so its gradient is only rounding: its
    error is relative to the norm of all gradients.
    """
    norms, scale = found
    rounded = np.array([ROUNDED if key.endswith("key.bias") else 1e-9 for key in keys]) * np.linalg.norm(expected)
    error = np.abs(norms - expected) / np.maximum(np.maximum(np.abs(expected), scale), rounded)
    error[(expected < 0) != (norms < 0)] = np.inf
    return error
