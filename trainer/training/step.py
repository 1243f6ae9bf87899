"""One step of the optimizer. The host queues it without waiting for the device.

The values of a step are read later, from a copy that the device makes when it has computed them. The check for numbers
that are not finite is therefore done on the device: AdamW leaves the weights unchanged in such a step and in all steps
after it, until the host reads the values and ends the run. Other optimizers wait for the check.
"""

import math
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from hypergrit_common.devices import tf32, torch_dtype
from hypergrit_common.errors import UserError
from hypergrit_common.text import shortened
from trainer.batch import Batch, Losses
from trainer.config import TrainConfig
from trainer.data.loader import Loader
from trainer.distributed.gather import all_ranks, counts_of_ranks, rank, world_size
from trainer.distributed.process import average, average_unsharded_gradients, clip_gradients, gradient_norm, mark_queued
from trainer.models.dual_encoder import DualEncoder
from trainer.optim.config import ADAMW
from trainer.optim.optimizer import learning_rate
from trainer.training.build import Training, bf16_weights
from trainer.training.writers import named_values

# Copies of batches to the device, on a CUDA stream of their own.

AHEAD: Final = 2
"""Steps before that of a batch in which its `owned` travel: the host has then read their values, and waits for nothing."""


class BatchCopies:
    """The batches of a loader, on the device of this process.

    Call `start` once a step has been queued: the next batch is then copied while the device computes. `state` is the
    loader's state after the batch that `take` has returned; the loader itself is ahead of it.

    Ranks need the numbers of rows of each other in streams with owners. Those of a batch travel with the values of the step
    two before it, so that no exchange of their own is needed: pass them to `note`. So two more batches wait on the host.
    """

    def __init__(self, loader: Loader, device: torch.device) -> None:
        self.loader, self.device = loader, device
        self.batches = iter(loader)
        self.state = loader.state_dict()
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.read: deque[tuple[Batch, dict[str, Any]]] = deque()
        self.next: tuple[Batch, dict[str, Any]] | None = None
        self.counts: deque[list[tuple[int, ...]]] = deque([[]] * AHEAD)  # of the next batches; empty: not known

    def start(self) -> None:
        """Read a batch, and queue the copy of the next one to the device."""
        self._read()
        while world_size() > 1 and self.read[0][0].owned and len(self.read) <= AHEAD:
            self._read()
        (batch, state), announced = self.read.popleft(), None
        if self.read:
            announced = torch.zeros(len(batch.owned), world_size(), pin_memory=self.stream is not None)
            announced[:, rank()] = torch.tensor(list(self.read[-1][0].owned.values()), dtype=torch.float32)
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            self.next = replace(batch, announced=announced).to(self.device, non_blocking=True), state

    def _read(self) -> None:
        self.read.append((next(self.batches), self.loader.state_dict()))

    def note(self, counts: list[tuple[int, ...]]) -> None:
        """Take the `PendingStep.announced` of a step."""
        self.counts.append(counts)

    def take(self) -> Batch:
        """Return the next batch. Operations that are queued after this call wait for its copy on the device."""
        if self.next is None:
            self.start()
        assert self.next is not None
        (batch, self.state), self.next = self.next, None
        if self.stream is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_stream(self.stream)
            batch.record_stream(stream)  # the next copy does not reuse its memory before the step has ended
        known = self.counts.popleft() if self.counts else []
        return replace(
            batch, counts=dict(zip(batch.owned, known or counts_of_ranks([*batch.owned.values()]), strict=True))
        )


# Error message for a loss or gradient that is not finite.

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
        sentences.append(f"Parameters whose gradients are not finite: {shortened(parameters, MAX_NAMES, ', ')}")
    keys = nonfinite_keys(model, batch)
    are_weights = 2 * len(keys) > len(batch.keys)
    if are_weights:
        sentences.append(
            f"The features of {len(keys)} of {len(batch.keys)} samples are not finite: the weights diverged"
        )
    elif keys:
        sentences.append(f"Samples whose features are not finite: {shortened(keys, MAX_NAMES, ', ')}")
    elif batch.keys:
        sentences.append(f"All features are finite; samples of the batch: {shortened(batch.keys, MAX_NAMES, ', ')}")
    saved = f"checkpoint {checkpoint} is complete" if checkpoint else "no checkpoint exists yet"
    sentences.append(
        f"The step was discarded; {saved}. {'' if are_weights else 'Check these samples. '}A lower optim.lr, more "
        "optim.warmup_steps or precision=fp32 may help; resume with resume=anyway after changing them"
    )
    return ". ".join(sentences)


@torch.no_grad()
def nonfinite_keys(model: DualEncoder, batch: Batch) -> list[str]:
    """Keys of samples with a row of a stream whose features are not finite. Empty for a model sharded by FSDP."""
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()) or not batch.keys:
        return []
    bad = set[int]()
    for stream in model.features(batch).streams.values():
        rows = (~torch.isfinite(stream.rows).flatten(1).all(1)).nonzero()[:, 0]
        bad |= set((rows if stream.owner is None else stream.owner[rows]).tolist())
    return [key for number, key in enumerate(batch.keys) if number in bad]


def is_finite(gradient: Tensor) -> bool:
    """True if all numbers are finite. Of a sharded gradient, only the numbers on this rank are checked."""
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return bool(torch.isfinite(local).all())


MAX_SKIPPED: Final = 32
"""Steps in a row that fp16 may skip. The search for a scale takes about 16: it begins at 65,536 and halves each time."""


@dataclass(frozen=True, kw_only=True)
class PendingStep:
    """A step that has been queued, and its values on their way to the host."""

    run: Training
    batch: Batch
    number: int  # of the step, from 1
    facts: dict[str, float]  # values that the host knows
    names: tuple[str, ...]
    values: Tensor  # [v] on the host, valid once `ready` has been reached
    ready: torch.cuda.Event | None

    def read(self, finish_checkpoint: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Wait for the values, averaged over the ranks, and return them by name. Collective if they are not finite.

        `finish_checkpoint` waits for a checkpoint that is being written, so that an error names it.

        "stop" and "failed" are above 0 if these arguments of `start_step` were true on any rank. Raises UserError if
        the loss or the gradient is not finite; weights and optimizer are those before the step. In fp16, the scaler skips
        a step whose gradient is not finite, and lowers its scale; that is an error after `MAX_SKIPPED` steps in a row, or
        if the run has no other step. The values of all steps must be read in their order.
        """
        if self.ready is not None:
            self.ready.synchronize()
        values = dict(zip(self.names, self.values.tolist(), strict=False)) | self.facts
        run = self.run
        run.skipped = run.skipped + 1 if values.get("fp16/skipped", 0) > 0 else 0
        is_stuck = run.skipped >= min(MAX_SKIPPED, run.config.optim.steps)
        if values.pop("fatal") > 0 or is_stuck:
            run.model.begin_step(self.number - 1)
            losses = compute_gradients(run, self.batch)  # again: the steps after this one have replaced them
            values |= {name: value.item() for name, value in named_values(losses).items() if name not in values}
            finish_checkpoint()
            last = all_ranks(run.folder.newest_checkpoint())[0]  # of rank 0, which writes them
            message = describe_nonfinite(run.model, self.batch, values, self.number, last)
            raise UserError(f"fp16 has skipped {run.skipped} steps in a row; {message}" if is_stuck else message)
        return values

    def announced(self) -> list[tuple[int, ...]]:
        """The numbers `Batch.announced` of each rank, once the values have been read; empty if there are none."""
        return [tuple(map(round, row)) for row in self.values[len(self.names) :].view(-1, world_size()).tolist()]


def update(run: Training, batch: Batch) -> dict[str, float]:
    """Do one step and wait for its values. Collective; arguments, result and errors as in `start_step` and `read`."""
    return start_step(run, batch).read()


def start_step(run: Training, batch: Batch, *, stopping: bool = False, failed: bool = False) -> PendingStep:
    """Queue one step of the optimizer. Collective. `stopping` and `failed` of any rank reach all ranks in its values.

    Weights and optimizer stay unchanged if the loss or the gradient is not finite.
    """
    rate = learning_rate(run.step, run.config.optim)
    facts = {"lr": rate} | {f"schedule/{name}": value for name, value in run.model.scheduled.items()}
    for group in run.optimizer.param_groups:
        group["lr"] = rate * group["lr_ratio"]
    losses = compute_gradients(run, batch)
    run.scaler.unscale_(run.optimizer)
    names, values, announced = mean_values(run, losses, stopping, failed, batch.announced)
    if run.config.optim.max_gradient_norm is not None:
        clip_gradients(run.model.parameters(), values[names.index("grad_norm")], run.config.optim.max_gradient_norm)
    is_bad = ~torch.isfinite(values)
    loss_is_bad, norm_is_bad = is_bad[0], is_bad[names.index("grad_norm")]
    is_fatal = loss_is_bad if run.scaler.is_enabled() else loss_is_bad | norm_is_bad
    run.halted = torch.maximum(run.halted, is_fatal.float())
    skips = torch.maximum(run.halted, norm_is_bad.float())
    if run.config.optim.name == ADAMW:
        # Fused AdamW skips a step for which this is 1, as after an overflow in fp16: no other way avoids reading a value.
        run.optimizer.found_inf = skips  # type: ignore[attr-defined]
    if run.config.optim.name == ADAMW or not skips:
        run.optimizer.step()
    run.scaler.update()
    run.optimizer.zero_grad(set_to_none=True)
    run.model.clamp_parameters()
    run.average.update(run.step)
    if run.model.unread:
        raise UserError(
            f"model.schedules: no step reads {' or '.join(sorted(run.model.unread))}, so that the course has no effect; "
            "leave it out. A class of your own has to read self.config in its loss, or in begin_step"
        )
    run.step += 1
    run.model.begin_step(run.step)
    more = {"fatal": is_fatal.float()}
    if run.scaler.is_enabled():
        more |= {"fp16/scale": run.scaler.scale(torch.ones_like(is_fatal, dtype=torch.float32))}
        more |= {"fp16/skipped": norm_is_bad.float()}
    host, ready = to_host(torch.cat([values, torch.stack(list(more.values())), announced]))
    return PendingStep(
        run=run, batch=batch, number=run.step, facts=facts, names=(*names, *more), values=host, ready=ready
    )


def compute_gradients(run: Training, batch: Batch) -> Losses:
    """Compute the losses of a batch and their gradients, averaged over the ranks. Collective."""
    run.freezing.set_modes(run.step)
    with tf32(run.precision == "fp32"), bf16_weights(run.model) if run.config.bf16_parameters else nullcontext():
        with autocast(run):
            losses: Losses = run.wrapped(batch)
        run.scaler.scale(losses.loss).backward()
    average_unsharded_gradients(run.model, run.wrapped, run.process)
    run.freezing.drop_gradients(run.step)
    return losses


def autocast(run: Training) -> torch.autocast:
    """A context in which the towers compute in the precision of the run. Models leave it to compute their losses."""
    dtype = torch_dtype(run.precision)
    return torch.autocast(run.process.device.type, dtype=dtype, enabled=dtype != torch.float32)


def mean_values(
    run: Training, losses: Losses, stopping: bool, failed: bool, announced: Tensor | None
) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Names and averages over the ranks of the loss, the terms, the gradient norm, `stopping` and `failed`: [v].

    They are stacked into one tensor, which takes one all-reduce per step. The loss comes first; the terms are left out
    in steps that are not logged. The third item is the sum over the ranks of `announced`, in one row.
    """
    values = named_values(losses) if is_logged(run.config, run.step + 1) else {"loss/total": losses.loss.detach()}
    norm = gradient_norm(run.model.parameters())
    # Not torch.tensor, which copies from the host and waits for it.
    flags = [torch.full_like(norm, float(flag), dtype=torch.float32) for flag in (stopping, failed)]
    stacked = torch.stack([value.float() for value in (*values.values(), norm, *flags)])
    sent = stacked.new_empty(0) if announced is None else announced.flatten() * run.process.world_size
    means, counts = average(torch.cat([stacked, sent]), run.process).split([len(stacked), len(sent)])
    return (*values, "grad_norm", "stop", "failed"), means, counts


def is_logged(config: TrainConfig, number: int) -> bool:
    """True if the values of step `number`, from 1, become a row of metrics."""
    return number % config.log.every == 0 or number == config.optim.steps


def to_host(values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Copy values to the host. On a GPU the copy is only queued; it is complete once the event has been reached."""
    if values.device.type != "cuda":
        return values, None
    host = values.to("cpu", non_blocking=True)
    return host, mark_queued(values.device)
