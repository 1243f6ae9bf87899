"""The training loop: AdamW on GLIP's loss, in one process or in several whose weights and moments are averaged.

The learning rate and all random numbers depend only on the seed, the process and the step. Runs are therefore
reproducible, and an interrupted and resumed run ends with the weights of an uninterrupted one.
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

from hypergrit_common.json_file import truncate
from hypergrit_common.optim import parameter_groups, warmup_cosine
from pipeline.stages.ground.glip.model import Glip
from pipeline.stages.ground.glip.training.checkpoint import Averaged, TrainingState, average_processes, restore, save
from pipeline.stages.ground.glip.training.config import GlipTrainConfig, OptimConfig
from pipeline.stages.ground.glip.training.loss import Target, glip_loss
from pipeline.stages.ground.glip.training.shards import Batch

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"


def train(model: Glip, data: Iterator[Batch], vocab: Path, config: GlipTrainConfig, *, resume: bool = False) -> None:
    """Train to step `config.optim.steps`, with metrics and checkpoints in `config.output`.

    Args:
        model: the network, on its device.
        data: batches of this process; with `resume`, from batch `next_step(config.output)` on.
        vocab: vocab.txt, which is copied to the output.
        config: settings.
        resume: continue from the checkpoint of the output.

    Raises:
        FloatingPointError: a loss or a gradient is not finite; the weights were not changed by it.
        UserError: a checkpoint cannot be read or written.
    """
    out, optim = Path(config.output), config.optim
    # No channels-last format: it makes GroupNorm's backward pass in bfloat16 on a CPU 12 times slower.
    model.train()
    state = TrainingState(
        model=model, optimizer=make_optimizer(model, optim), averaged=Averaged(model, optim.ema), sums=torch.zeros(3)
    )
    rank = dist.get_rank() if dist.is_initialized() else 0
    if resume:
        restore(out, state)
    if rank == 0:
        truncate(out / METRICS, state.step)
    logged_at = saved_at = time.monotonic()
    logged_step = state.step
    for step in range(state.step, optim.steps):
        torch.manual_seed(int(np.random.SeedSequence((config.seed, rank, step)).generate_state(1)[0]))
        state.sums += train_step(state, next(data), optim)
        state.step = step + 1
        is_averaged = state.step % optim.average_every == 0 or state.step == optim.steps
        if is_averaged:
            average_processes(model, state.optimizer)
        state.averaged.update(model, step)
        if state.step % config.log.every == 0:
            if rank == 0:
                now = time.monotonic()
                step_s = (now - logged_at) / (state.step - logged_step)
                _log(out, state.step, config, state.sums / config.log.every, step_s)
                logged_at, logged_step = now, state.step
            state.sums = torch.zeros(3)
        is_due = state.step == optim.steps or time.monotonic() - saved_at > config.save.interval_s
        if rank == 0 and is_averaged and is_due:
            save(out, state, vocab)
            saved_at = time.monotonic()


def make_optimizer(model: Glip, config: OptimConfig) -> torch.optim.AdamW:
    """Build AdamW with weight decay on matrices only and a separate learning rate for the language tower."""
    groups = parameter_groups(
        model, lr=config.lr, weight_decay=config.weight_decay, lr_ratios={"language_backbone": config.language_lr_ratio}
    )
    return torch.optim.AdamW(groups, fused=True)


def lr_factor(step: int, config: OptimConfig) -> float:
    """Return the learning rate at `step`, counted from 0, as a multiple of the peak learning rate."""
    return warmup_cosine(
        step, steps=config.steps, warmup_steps=config.warmup_steps, final_ratio=config.final_lr_ratio, first_step=1
    )


def train_step(state: TrainingState, batch: Batch, config: OptimConfig) -> Tensor:
    """Run one optimizer step. Returns the token, box and centerness losses, [3] on the CPU.

    Raises FloatingPointError, before changing the weights, if a loss or the gradient is not finite.
    """
    model, device = state.model, next(state.model.parameters()).device
    factor = lr_factor(state.step, config)
    for group in state.optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
    mask = batch.mask.to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        output = model(batch.images.to(device), batch.ids.to(device), mask)
    targets = [Target(boxes=target.boxes.to(device), tokens=target.tokens.to(device)) for target in batch.targets]
    losses = glip_loss(output, mask, targets, model.config)
    state.optimizer.zero_grad(set_to_none=True)
    losses.total.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.max_gradient_norm)
    values = torch.stack([losses.token, losses.box, losses.centerness, norm]).detach().cpu()  # one copy for all four
    if not torch.isfinite(values).all():
        names = ("token", "box", "centerness", "gradient")
        terms = ", ".join(f"{name} {value:.3g}" for name, value in zip(names, values, strict=True))
        raise FloatingPointError(f"step {state.step + 1}: the loss or its gradient is not finite: {terms}")
    state.optimizer.step()
    return values[:3]


def _log(out: Path, step: int, config: GlipTrainConfig, losses: Tensor, step_s: float) -> None:
    """Log the mean losses since the last call and append them to the metrics; `step_s` is the time of a step."""
    n_processes = dist.get_world_size() if dist.is_initialized() else 1
    images_per_s = config.batch_size * n_processes / step_s
    token, box, centerness = (round(value, 4) for value in losses.tolist())
    lr = config.optim.lr * lr_factor(step - 1, config.optim)
    logger.info(
        "step %d/%d  token %.3f  box %.3f  centerness %.3f  lr %.2e  %.1f images/s  %.0f min left",
        step, config.optim.steps, token, box, centerness, lr, images_per_s, (config.optim.steps - step) * step_s / 60,
    )  # fmt: skip
    row = {"step": step, "loss/token": token, "loss/box": box, "loss/centerness": centerness}
    out.mkdir(parents=True, exist_ok=True)
    with (out / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row | {"images_per_s": round(images_per_s, 1)}) + "\n")
