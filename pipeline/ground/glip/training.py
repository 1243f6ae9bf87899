"""The training loop: steps of AdamW on GLIP's loss, on one or several processes whose weights are averaged.

The schedule goes by steps, never by the clock, so a run can be repeated.
"""

import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.ground.glip.examples import Batch
from pipeline.ground.glip.load import save_glip
from pipeline.ground.glip.loss import Target, glip_loss
from pipeline.ground.glip.model import Glip

logger = logging.getLogger(__name__)


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
    average_every: int = 6  # steps between averages of the processes' weights; checkpoints fall on them
    log_every: int = 20  # steps between two lines of the log and of metrics.jsonl
    checkpoint_s: float = 180.0  # seconds between two checkpoints at least

    def __post_init__(self) -> None:
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
def average_processes(model: nn.Module) -> None:
    """Replace the floating state by its mean over all processes."""
    if not dist.is_initialized():
        return
    tensors = [value for value in model.state_dict().values() if value.is_floating_point()]
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def train(
    model: Glip, data: Iterator[Batch], vocab: Path, out: Path, config: TrainConfig, *, resume: bool = False
) -> None:
    """Train until `config.steps`; `out` always holds the averaged weights of the last checkpoint.

    With `resume`, `data` must begin at the batch that `next_step(out)` names.
    """
    device = next(model.parameters()).device
    model.train()  # planes, not channels last: GroupNorm's backward pass on a CPU in bfloat16 is 12 times faster so
    optimizer = make_optimizer(model, config)
    averaged = Averaged(model, config.ema)
    start = _restore(out, model, optimizer, averaged) if resume else 0
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    sums = torch.zeros(3)
    began = saved = time.monotonic()
    for step in range(start, config.steps):
        sums += train_step(model, next(data), optimizer, learning_rate(step, config), config, device)
        if (step + 1) % config.average_every == 0 or step + 1 == config.steps:
            average_processes(model)
        averaged.update(model, step)
        if is_first and (step + 1) % config.log_every == 0:
            now = time.monotonic()
            _log(out, step + 1, config, sums / config.log_every, now - began)
            sums, began = torch.zeros(3), now
        is_average = (step + 1) % config.average_every == 0
        if is_first and (step + 1 == config.steps or (is_average and time.monotonic() - saved > config.checkpoint_s)):
            _save(out, step + 1, model, optimizer, averaged, vocab)
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
    nn.utils.clip_grad_norm_(model.parameters(), config.max_gradient_norm)
    optimizer.step()
    return torch.stack([losses.token, losses.box, losses.centerness]).detach().cpu()


def next_step(out: Path) -> int:
    """The step at which a run in `out` goes on; 0 without a checkpoint."""
    path = out / "state.pt"
    return int(torch.load(path, weights_only=True, map_location="cpu", mmap=True)["step"]) if path.exists() else 0


def _restore(out: Path, model: Glip, optimizer: torch.optim.Optimizer, averaged: Averaged) -> int:
    path = out / "state.pt"
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True, map_location=next(model.parameters()).device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    averaged.state = state["averaged"]
    return int(state["step"])


def _save(out: Path, step: int, model: Glip, optimizer: torch.optim.Optimizer, averaged: Averaged, vocab: Path) -> None:
    save_glip(out, averaged.state, model.config, vocab)
    state: Mapping[str, object] = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "averaged": averaged.state,
    }
    temporary = out / "state.pt.tmp"
    torch.save(state, temporary)
    os.replace(temporary, out / "state.pt")
    logger.info("step %d: checkpoint in %s", step, out)


def _log(out: Path, step: int, config: TrainConfig, losses: Tensor, seconds: float) -> None:
    n_processes = dist.get_world_size() if dist.is_initialized() else 1
    images_per_s = config.log_every * config.batch_size * n_processes / seconds
    token, box, centerness = (round(value, 4) for value in losses.tolist())
    left_s = (config.steps - step) * seconds / config.log_every
    logger.info(
        "step %d/%d  token %.3f  box %.3f  centerness %.3f  lr %.2e  %.1f images/s  %.0f min left",
        step, config.steps, token, box, centerness, config.lr * learning_rate(step - 1, config), images_per_s,
        left_s / 60,
    )  # fmt: skip
    line = {"step": step, "loss/token": token, "loss/box": box, "loss/centerness": centerness}
    out.mkdir(parents=True, exist_ok=True)
    with (out / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line | {"images_per_s": round(images_per_s, 1)}) + "\n")
