"""Comparison of a short training run with the reference numbers."""

from collections.abc import Callable, Set
from typing import Any

import torch

from tests.parity.model_cases import SIZES, batch_of, build, fill
from tests.parity.model_terms import compare_terms, used_scalars
from tests.parity.report import Report
from trainer.checkpoints.model import FACTOR_SCALARS
from trainer.optim.config import OptimConfig
from trainer.optim.optimizer import build_optimizer, learning_rate


def compare_trace(
    report: Report,
    meta: dict[str, Any],
    size: dict[str, Any] = SIZES["mini"],
    compare: Callable[..., None] = compare_terms,
    unused: Set[str] = frozenset(),
) -> None:
    """Six optimizer steps of the mini model on one batch, with the weight decay of the released code.

    `compare` compares the terms of the loss; `unused` are parameters that only the reference has.
    """
    model = build(meta, size, meta["kwargs"])
    fill(model, meta)
    config = OptimConfig(warmup_steps=2, steps=8, decay="released")
    optimizer, batch = build_optimizer(model, config), batch_of(meta, torch.float32)
    model.clamp_parameters()
    for step, expected in enumerate(meta["train_trace"]):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        report.add("learning rates", 1e-9, learning_rate(step, config), expected["lr"], floor=1e-12, where=str(step))
        losses = model(batch)
        compare(report, "training trace", 2e-5, losses, expected, f"step {step}")
        optimizer.zero_grad()
        losses.loss.backward()
        optimizer.step()
        model.clamp_parameters()
    after = used_scalars(model)
    for key, value in meta["train_trace_after"].items():
        if key in after and key not in unused:
            report.add(
                "after training", 2e-5, after[key] if after[key].ndim == 0 else after[key].norm(), value, where=key
            )
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    ours_decayed = {name for name, parameter in model.named_parameters() if id(parameter) in decayed}
    theirs = {name for group in meta["param_groups"] if group["weight_decay"] > 0 for name in group["names"]}
    stems = {stem: name for name, stem in FACTOR_SCALARS.items()}
    theirs = {stems.get(name.partition(".")[0], name) for name in theirs} - unused
    report.check("decayed parameters", ours_decayed == theirs, str(sorted(ours_decayed ^ theirs)[:3]))
