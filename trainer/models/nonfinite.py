"""What to say of a loss or gradient that is not a number."""

import math
from pathlib import Path

import torch

from trainer.batch import Batch, Pairs
from trainer.models.dual_encoder import DualEncoder

SHOWN = 8


def describe_nonfinite(model: DualEncoder, batch: Batch, values: dict[str, float], step: int, last: Path | None) -> str:
    """Step, terms, parameters and samples; called before the step changed anything."""
    terms = [name for name, value in values.items() if not math.isfinite(value)]
    parameters = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not is_finite(parameter.grad)
    ]
    keys = guilty_keys(model, batch)
    what = "the loss is" if not math.isfinite(values["loss/total"]) else "the gradient is"
    lines = [f"step {step}: {what} not finite. Not finite: {', '.join(terms)}"]
    if parameters and what == "the gradient is":
        lines.append(f"gradients of {', '.join(parameters[:SHOWN])}{more(parameters)}")
    if keys:
        lines.append(f"samples whose features are not finite: {', '.join(keys[:SHOWN])}{more(keys)}")
    elif batch.keys:
        lines.append(
            f"all features are finite; samples of the batch: {', '.join(batch.keys[:SHOWN])}{more(batch.keys)}"
        )
    kept = f"{last} is complete" if last else "there is no checkpoint yet"
    lines.append(
        f"nothing of this step was kept; {kept}. Look at these samples; a lower lr=, a longer optim.warmup_steps= or precision=fp32 "
        "may help (with resume=anyway)"
    )
    return ". ".join(lines)


@torch.no_grad()
def guilty_keys(model: DualEncoder, batch: Batch) -> list[str]:
    """Samples of which an image, text or box has features that are not finite. Empty for a model in shares (FSDP)."""
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()) or not batch.keys:
        return []
    pairs = model.features(batch)
    bad = bad_rows(pairs.image) | bad_rows(pairs.text)
    for part in box_parts(pairs):
        owner = batch.box_owner if batch.box_owner is not None else torch.arange(len(bad), device=bad.device)
        bad[owner[bad_rows(part)]] = True
    return [key for key, wrong in zip(batch.keys, bad.tolist(), strict=True) if wrong]


def box_parts(pairs: Pairs) -> list[torch.Tensor]:
    return [part for part in (pairs.box_image, pairs.box_text) if part is not None]


def bad_rows(features: torch.Tensor) -> torch.Tensor:
    return ~torch.isfinite(features).all(dim=-1)


def is_finite(value: torch.Tensor) -> bool:
    local = value.to_local() if hasattr(value, "to_local") else value
    return bool(torch.isfinite(local).all())


def more(items: list[str] | tuple[str, ...]) -> str:
    return f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
