"""The training loop: steps of AdamW on GLIP's loss, on one or several processes whose weights and moments are averaged.

The schedule goes by steps, never by the clock, and what a step draws is a function of its number: a run can be repeated, and
one that was killed ends with the weights of one that was not.
"""

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn

from common.disk import replacing
from common.errors import UserError
from common.load import check_positive
from common.rows_file import truncate
from common.weights import load_tensors
from pipeline.ground.glip.examples import Batch
from pipeline.ground.glip.load import save_glip
from pipeline.ground.glip.loss import Target, glip_loss
from pipeline.ground.glip.model import Glip

logger = logging.getLogger(__name__)

STATE = "state.pt"
METRICS = "metrics.jsonl"


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The defaults are the miniature's; fine-tuning a released model wants `lr=1e-4`, `language_lr_ratio=0.1`."""

    steps: int = 2500  # of the whole run; more than warmup_steps
    batch_size: int = 16  # images a step and process
    lr: float = 2e-3  # of AdamW, at its highest
    language_lr_ratio: float = 1.0  # the language tower's rate, as a multiple of lr
    final_lr_ratio: float = 0.01  # the last step's rate, as a multiple of lr; a cosine leads there
    warmup_steps: int = 100  # linear, from 0
    weight_decay: float = 1e-4  # not on biases and gains
    max_gradient_norm: float = 5.0  # larger gradients are scaled down
    ema: float = 0.992  # decay of the average that becomes the model
    average_every: int = 6  # steps between averages of the processes' weights and moments; checkpoints fall on them
    log_every: int = 20  # steps between two lines of the log and of metrics.jsonl
    checkpoint_s: float = 180.0  # seconds between two checkpoints at least

    def __post_init__(self) -> None:
        check_positive(self, "batch_size", "lr", "max_gradient_norm", "average_every", "log_every", prefix="train.")
        if not 0 <= self.ema < 1:
            raise ValueError(f"train.ema is {self.ema}; give one from 0 to below 1")
        if self.steps <= self.warmup_steps:
            raise ValueError(f"steps={self.steps} must exceed warmup_steps={self.warmup_steps}")


def learning_rate(step: int, config: TrainConfig) -> float:
    """Factor of the base rate: linear warm-up, then a cosine."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / (config.steps - config.warmup_steps)
    cosine = (1 + math.cos(math.pi * min(progress, 1.0))) / 2
    return config.final_lr_ratio + (1 - config.final_lr_ratio) * cosine


def make_optimizer(model: Glip, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW; matrices decay, vectors do not; the language tower has its own rate."""
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault((parameter.ndim > 1, name.startswith("language_backbone")), []).append(parameter)
    parts = [
        {
            "params": parameters,
            "weight_decay": config.weight_decay * is_matrix,
            "lr": config.lr * (config.language_lr_ratio if is_language else 1.0),
        }
        for (is_matrix, is_language), parameters in groups.items()
    ]
    for part in parts:
        part["initial_lr"] = part["lr"]
    return torch.optim.AdamW(parts, fused=True)


class Averaged:
    """Exponential average of a model's floating state; early on the horizon grows with the steps."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.state = {key: value.detach().clone() for key, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        pairs = [(self.state[key], value) for key, value in model.state_dict().items() if value.is_floating_point()]
        torch._foreach_lerp_([old for old, _ in pairs], [new for _, new in pairs], 1 - decay)


@torch.no_grad()
def average_processes(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the weights, and the moments that AdamW keeps of them, by their means over all processes."""
    if not dist.is_initialized():
        return
    tensors = [value for value in model.state_dict().values() if value.is_floating_point()]
    for parameter in model.parameters():
        moments = optimizer.state.get(parameter, {})
        tensors += [moments[key] for key in ("exp_avg", "exp_avg_sq") if key in moments]
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


@dataclass(kw_only=True)
class Run:
    """What training changes: all that a checkpoint holds."""

    model: Glip
    optimizer: torch.optim.AdamW
    averaged: Averaged
    sums: Tensor  # of the losses since the last line of the log
    step: int = 0  # the next one


def train(
    model: Glip,
    data: Iterator[Batch],
    vocab: Path,
    out: Path,
    config: TrainConfig,
    *,
    seed: int = 0,
    resume: bool = False,
) -> None:
    """Train until `config.steps`; `out` always holds the averaged weights of the last checkpoint. `seed` is that of drop-out.

    With `resume`, `data` must begin at the batch that `next_step(out)` names.
    """
    device = next(model.parameters()).device
    model.train()  # planes, not channels last: GroupNorm's backward pass on a CPU in bfloat16 is 12 times faster so
    run = Run(
        model=model, optimizer=make_optimizer(model, config), averaged=Averaged(model, config.ema), sums=torch.zeros(3)
    )
    rank = dist.get_rank() if dist.is_initialized() else 0
    if resume:
        _restore(out, run)
    if rank == 0:
        truncate(out / METRICS, run.step)
    began = saved = time.monotonic()
    began_at = run.step
    for step in range(run.step, config.steps):
        torch.manual_seed(int(np.random.SeedSequence((seed, rank, step)).generate_state(1)[0]))
        run.sums += train_step(model, next(data), run.optimizer, learning_rate(step, config), config, device)
        run.step = step + 1
        is_average = run.step % config.average_every == 0 or run.step == config.steps
        if is_average:
            average_processes(model, run.optimizer)
        run.averaged.update(model, step)
        if run.step % config.log_every == 0:
            if rank == 0:
                now = time.monotonic()
                _log(out, run.step, config, run.sums / config.log_every, (now - began) / (run.step - began_at))
                began, began_at = now, run.step
            run.sums = torch.zeros(3)
        is_due = run.step == config.steps or time.monotonic() - saved > config.checkpoint_s
        if rank == 0 and is_average and is_due:
            _save(out, run, vocab)
            saved = time.monotonic()


def train_step(
    model: Glip, batch: Batch, optimizer: torch.optim.Optimizer, rate: float, config: TrainConfig, device: torch.device
) -> Tensor:
    """One step at `rate` times the base rates; the token, box and centerness losses."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * rate
    mask = batch.mask.to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        output = model(batch.images.to(device), batch.ids.to(device), mask)
    targets = [Target(boxes=target.boxes.to(device), tokens=target.tokens.to(device)) for target in batch.targets]
    losses = glip_loss(output, mask, targets, model.config)
    if not torch.isfinite(losses.total):
        raise FloatingPointError(f"the loss is not finite: {losses}")
    optimizer.zero_grad(set_to_none=True)
    losses.total.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.max_gradient_norm)
    if not torch.isfinite(norm):
        raise FloatingPointError(f"the gradient is not finite: {losses}")
    optimizer.step()
    return torch.stack([losses.token, losses.box, losses.centerness]).detach().cpu()


def next_step(out: Path) -> int:
    """The step at which a run in `out` goes on; 0 without a checkpoint."""
    path = out / STATE
    return int(_read(path, "cpu", mmap=True)["step"]) if path.exists() else 0


def _read(path: Path, device: torch.device | str, mmap: bool = False) -> dict[str, Any]:
    """Raises UserError for a checkpoint that is damaged."""
    try:
        state = load_tensors(path, device, mmap=mmap)
    except ValueError as error:
        raise UserError(f"{path} is damaged; delete it to train from the start") from error
    assert isinstance(state, dict)
    return state


def _restore(out: Path, run: Run) -> None:
    path = out / STATE
    if not path.exists():
        return
    state = _read(path, next(run.model.parameters()).device)
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.averaged.state = state["averaged"]
    run.sums = state["sums"].cpu()
    run.step = int(state["step"])


def _save(out: Path, run: Run, vocab: Path) -> None:
    """Raises UserError if the disk is full; what was there before stays."""
    state: Mapping[str, object] = {
        "step": run.step,
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "averaged": run.averaged.state,
        "sums": run.sums,
    }
    try:
        save_glip(out, run.averaged.state, run.model.config, vocab)
        with replacing(out / STATE) as draft:
            torch.save(state, draft)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"the checkpoint of step {run.step} cannot be written to {out}: {error}; make room, then the same command goes on"
        ) from error
    logger.info("step %d: checkpoint in %s", run.step, out)


def _log(out: Path, step: int, config: TrainConfig, losses: Tensor, step_s: float) -> None:
    n_processes = dist.get_world_size() if dist.is_initialized() else 1
    images_per_s = config.batch_size * n_processes / step_s
    token, box, centerness = (round(value, 4) for value in losses.tolist())
    left_s = (config.steps - step) * step_s
    logger.info(
        "step %d/%d  token %.3f  box %.3f  centerness %.3f  lr %.2e  %.1f images/s  %.0f min left",
        step, config.steps, token, box, centerness, config.lr * learning_rate(step - 1, config), images_per_s,
        left_s / 60,
    )  # fmt: skip
    line = {"step": step, "loss/token": token, "loss/box": box, "loss/centerness": centerness}
    out.mkdir(parents=True, exist_ok=True)
    with (out / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line | {"images_per_s": round(images_per_s, 1)}) + "\n")
