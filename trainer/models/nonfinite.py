"""Error message for a loss or gradient that is not finite."""

import math

import torch
from torch import Tensor

from trainer.batch import Batch, Pairs
from trainer.models.dual_encoder import DualEncoder

MAX_NAMES = 8
"""Maximum number of parameters or samples that the message lists."""


def describe_nonfinite(
    model: DualEncoder, batch: Batch, values: dict[str, float], step: int, checkpoint: str | None
) -> str:
    """Message that names the step, the terms, parameters and samples that are not finite, and the latest checkpoint.

    `values` are the logged values of the step by name, including "loss/total"; `checkpoint` is the latest one, or None.
    The parameters must hold the gradients of this step.
    """
    terms = [name for name, value in values.items() if not math.isfinite(value)]
    is_loss = not math.isfinite(values["loss/total"])
    subject = "the loss is" if is_loss else "the gradient is"
    sentences = [f"step {step}: {subject} not finite. Values that are not finite: {', '.join(terms)}"]
    parameters = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not is_finite(parameter.grad)
    ]
    if parameters and not is_loss:
        sentences.append(f"Parameters whose gradients are not finite: {first_names(parameters)}")
    keys = nonfinite_keys(model, batch)
    if keys:
        sentences.append(f"Samples whose features are not finite: {first_names(keys)}")
    elif batch.keys:
        sentences.append(f"All features are finite; samples of the batch: {first_names(batch.keys)}")
    saved = f"checkpoint {checkpoint} is complete" if checkpoint else "no checkpoint exists yet"
    sentences.append(
        f"The step was discarded; {saved}. Check these samples. A lower optim.lr, more optim.warmup_steps or "
        "precision=fp32 may help; resume with resume=anyway after changing them"
    )
    return ". ".join(sentences)


@torch.no_grad()
def nonfinite_keys(model: DualEncoder, batch: Batch) -> list[str]:
    """Keys of samples with an image, text or box whose features are not finite. Empty for a model sharded by FSDP."""
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()) or not batch.keys:
        return []
    pairs = model.features(batch)
    is_bad = nonfinite_rows(pairs.image) | nonfinite_rows(pairs.text)
    for features in box_features(pairs):
        owner = batch.box_owner if batch.box_owner is not None else torch.arange(len(is_bad), device=is_bad.device)
        is_bad[owner[nonfinite_rows(features)]] = True
    return [key for key, bad in zip(batch.keys, is_bad.tolist(), strict=True) if bad]


def box_features(pairs: Pairs) -> list[Tensor]:
    """Features of boxes and of phrases, if any."""
    return [features for features in (pairs.box_image, pairs.box_text) if features is not None]


def nonfinite_rows(features: Tensor) -> Tensor:
    """[b], True for rows of features [b d] with a number that is not finite."""
    return ~torch.isfinite(features).all(dim=-1)


def is_finite(gradient: Tensor) -> bool:
    """True if all numbers are finite. Of a sharded gradient, only the numbers on this rank are checked."""
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return bool(torch.isfinite(local).all())


def first_names(names: list[str] | tuple[str, ...]) -> str:
    """The first `MAX_NAMES` names, separated by commas, and the number of the others."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
