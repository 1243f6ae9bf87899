"""The training loop: steps of AdamW on GLIP's loss, on one or several processes whose weights and moments are averaged.

The schedule goes by steps, never by the clock, and what a step draws is a function of its number: a run can be repeated, and
one that was killed ends with the weights of one that was not.
"""

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from common.jsonl import truncate
from common.optim import parameter_groups, warmup_cosine
from pipeline.ground.glip.model import Glip
from pipeline.ground.glip.training.averaging import Averaged, average_processes
from pipeline.ground.glip.training.checkpoint import Run, restore, save
from pipeline.ground.glip.training.config import GlipTrainConfig, OptimConfig
from pipeline.ground.glip.training.examples import Batch
from pipeline.ground.glip.training.loss import Target, glip_loss

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"


def train(model: Glip, data: Iterator[Batch], vocab: Path, config: GlipTrainConfig, *, resume: bool = False) -> None:
    """Train until `config.optim.steps`; `config.output` always holds the averaged weights of the last checkpoint.

    With `resume`, `data` must start at the batch of `next_step(output)`. `config.seed` seeds drop-out.
    """
    out, optim = Path(config.output), config.optim
    model.train()  # planes, not channels last: GroupNorm's backward pass on a CPU in bfloat16 is 12 times faster so
    run = Run(
        model=model, optimizer=make_optimizer(model, optim), averaged=Averaged(model, optim.ema), sums=torch.zeros(3)
    )
    rank = dist.get_rank() if dist.is_initialized() else 0
    if resume:
        restore(out, run)
    if rank == 0:
        truncate(out / METRICS, run.step)
    began = saved = time.monotonic()
    began_at = run.step
    for step in range(run.step, optim.steps):
        torch.manual_seed(int(np.random.SeedSequence((config.seed, rank, step)).generate_state(1)[0]))
        run.sums += train_step(run, next(data), optim)
        run.step = step + 1
        is_average = run.step % optim.average_every == 0 or run.step == optim.steps
        if is_average:
            average_processes(model, run.optimizer)
        run.averaged.update(model, step)
        if run.step % config.log.every == 0:
            if rank == 0:
                now = time.monotonic()
                _log(out, run.step, config, run.sums / config.log.every, (now - began) / (run.step - began_at))
                began, began_at = now, run.step
            run.sums = torch.zeros(3)
        is_due = run.step == optim.steps or time.monotonic() - saved > config.save.interval_s
        if rank == 0 and is_average and is_due:
            save(out, run, vocab)
            saved = time.monotonic()


def make_optimizer(model: Glip, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices and a learning rate of its own for the language tower."""
    groups = parameter_groups(
        model,
        lr=config.lr,
        weight_decay=config.weight_decay,
        lr_ratios={"language_backbone": config.language_lr_ratio},
    )
    return torch.optim.AdamW(groups, fused=True)


def learning_rate(step: int, config: OptimConfig) -> float:
    """The factor of the peak learning rate at step 0, 1, ..."""
    return warmup_cosine(
        step, steps=config.steps, warmup_steps=config.warmup_steps, final_ratio=config.final_lr_ratio, first_step=1
    )


def train_step(run: Run, batch: Batch, config: OptimConfig) -> Tensor:
    """The run's next step; the token, box and centerness losses.

    Raises FloatingPointError before anything changes if the loss or its gradient is not finite.
    """
    model, device, rate = run.model, next(run.model.parameters()).device, learning_rate(run.step, config)
    for group in run.optimizer.param_groups:
        group["lr"] = group["initial_lr"] * rate
    mask = batch.mask.to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        output = model(batch.images.to(device), batch.ids.to(device), mask)
    targets = [Target(boxes=target.boxes.to(device), tokens=target.tokens.to(device)) for target in batch.targets]
    losses = glip_loss(output, mask, targets, model.config)
    run.optimizer.zero_grad(set_to_none=True)
    losses.total.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.max_gradient_norm)
    found = torch.stack([losses.token, losses.box, losses.centerness, norm]).detach().cpu()  # the one wait for a GPU
    if not torch.isfinite(found).all():
        terms = ", ".join(
            f"{n} {v:.3g}" for n, v in zip(("token", "box", "centerness", "gradient"), found, strict=True)
        )
        raise FloatingPointError(f"step {run.step + 1}: the loss or its gradient is not finite: {terms}")
    run.optimizer.step()
    return found[:3]


def _log(out: Path, step: int, config: GlipTrainConfig, losses: Tensor, step_s: float) -> None:
    n_processes = dist.get_world_size() if dist.is_initialized() else 1
    images_per_s = config.batch_size * n_processes / step_s
    token, box, centerness = (round(value, 4) for value in losses.tolist())
    left_s = (config.optim.steps - step) * step_s
    logger.info(
        "step %d/%d  token %.3f  box %.3f  centerness %.3f  lr %.2e  %.1f images/s  %.0f min left",
        step, config.optim.steps, token, box, centerness, config.optim.lr * learning_rate(step - 1, config.optim), images_per_s,
        left_s / 60,
    )  # fmt: skip
    line = {"step": step, "loss/token": token, "loss/box": box, "loss/centerness": centerness}
    out.mkdir(parents=True, exist_ok=True)
    with (out / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line | {"images_per_s": round(images_per_s, 1)}) + "\n")
