"""A step is queued without waiting for the device, and its values are read a step later."""

import dataclasses
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.data.samples import Files, write_shards
from tests.trainer.released_files import write_released
from tests.trainer.small import most_in_rest, small_batch, small_model
from tests.trainer.small_run import SAMPLES_PER_SHARD, run, small_config, small_run, small_sample
from trainer.batch import Batch, Losses
from trainer.distributed.process import Process
from trainer.optim.optimizer import build_optimizer
from trainer.training import loop, step
from trainer.training.build import Training, build_tokenizer, new_model
from trainer.training.step import describe_nonfinite, start_step, update


def run_on_meta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Training:
    """A run whose tensors have shapes but no values: every operation that needs a value on the host is an error."""
    found = small_run(tmp_path / "run")
    device = torch.device("meta")
    fields: dict[str, Any] = {"factor_dim": 8} if name == "phyclip" else {}
    found.model = found.wrapped = small_model(name, **fields).to(device)
    found.optimizer = build_optimizer(found.model, found.config.optim)
    found.halted = torch.zeros((), device=device)
    monkeypatch.setattr(step, "autocast", lambda _: nullcontext())  # autocast does not know this device
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda *_, **__: None)
    return found


@pytest.mark.parametrize("name", most_in_rest("hycoclip phyclip"))
def test_a_step_needs_no_value_of_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = run_on_meta(tmp_path, monkeypatch, name)
    copied: list[torch.Tensor] = []
    monkeypatch.setattr(step, "to_host", lambda values: (copied.append(values), (values, None))[1])
    for _ in range(2):
        start_step(found, small_batch().to("meta"), stopping=True)
    assert [values.device.type for values in copied] == ["meta", "meta"]
    assert found.step == 2


def test_a_gpu_reads_the_values_of_a_step_after_the_next_one_unless_it_is_alone_and_asked_to_stop() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert [loop.reads_at_once(Process(device=gpu, world_size=n), True) for n in (1, 2)] == [True, False]
    assert [loop.reads_at_once(Process(device=device), False) for device in (gpu, cpu)] == [False, True]


def test_the_values_of_a_step_are_read_after_the_next_one_unless_they_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "reads_at_once", lambda *_: False)  # as on GPUs
    events: list[str] = []
    real_start, real_read = loop.start_step, step.PendingStep.read

    def start(*arguments: Any, **named: Any) -> step.PendingStep:
        pending = real_start(*arguments, **named)
        events.append(f"start {pending.number}")
        return pending

    def read(pending: step.PendingStep, *arguments: Any) -> dict[str, float]:
        events.append(f"read {pending.number}")
        return real_read(pending, *arguments)

    monkeypatch.setattr(loop, "start_step", start)
    monkeypatch.setattr(step.PendingStep, "read", read)
    assert run(tmp_path / "run", "steps=5", "log.every=4", "save.every=100") == 0
    expected = "start 1, start 2, read 1, start 3, read 2, start 4, read 3, read 4, start 5, read 5"
    assert ", ".join(events) == expected


def test_the_next_batch_is_read_while_the_device_computes_and_a_checkpoint_does_not_skip_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = small_run(tmp_path / "run")
    copies = loop.BatchCopies(found.loader, torch.device("cpu"))
    keys = [copies.take().keys]
    copies.start()
    assert found.loader.position == 2 * found.config.batch_size
    assert copies.state["place"] == found.config.batch_size
    state = copies.state
    keys.append(copies.take().keys)
    found.loader.load_state_dict(state)
    assert next(iter(found.loader)).keys == keys[1]


def write_run_with_nan(tmp_path: Path, at: int) -> tuple[list[str], str]:
    """Write shards and weights with which the loss of step `at` is NaN; return the arguments of the run and the sample."""
    batches = iter(small_run(tmp_path / "loader").loader)
    key = [next(batches).keys for _ in range(at)][-1][3]
    folder, nan_caption = tmp_path / "with_nan", "~"

    def sample(number: int) -> Files:
        changed = {"child.txt": nan_caption.encode()} if key.endswith(f"/{number:04d}") else {}
        return small_sample(number) | changed

    write_shards(folder, SAMPLES_PER_SHARD, sample)
    config = small_config(tmp_path / "run")
    _, token, _ = build_tokenizer(config).encode(nan_caption)
    model = new_model(config)
    model.textual.token_embed.weight.data[token] = 3e38  # type: ignore[union-attr, operator, index]  # its square is infinite
    write_released(tmp_path / "nan.pth", model)
    return [f"shards={folder}", f"init={tmp_path / 'nan.pth'}"], key


def test_a_nan_that_is_read_late_changes_no_weight_and_ends_the_run_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loop, "reads_at_once", lambda *_: False)  # as on GPUs
    arguments, key = write_run_with_nan(tmp_path, at=6)
    weights: dict[int, torch.Tensor] = {}
    real_start = loop.start_step

    def start(found: Training, *arguments: Any, **named: Any) -> step.PendingStep:
        pending = real_start(found, *arguments, **named)
        weights[pending.number] = found.model.visual_proj.weight.detach().clone()
        return pending

    monkeypatch.setattr(loop, "start_step", start)
    assert run(tmp_path / "run", *arguments, "save.every=4", "log.every=4") == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "not finite" in line]
    assert len(lines) == 1
    assert "step 6: the loss is not finite" in lines[0]
    assert f"features are not finite: {key}." in lines[0]
    assert "step_00000004 is complete" in lines[0]
    assert sorted(weights) == [1, 2, 3, 4, 5, 6, 7]  # step 7 was queued before the values of step 6 were read
    assert not torch.equal(weights[4], weights[5])
    assert torch.equal(weights[5], weights[6])
    assert torch.equal(weights[5], weights[7])


def test_a_step_with_a_gradient_that_is_not_finite_leaves_the_optimizer_unchanged(tmp_path: Path) -> None:
    found = small_run(tmp_path / "run", "optim.warmup_steps=0")
    batch = next(iter(found.loader))
    update(found, batch)
    parameter = found.model.visual_proj.weight
    before = {key: value.clone() for key, value in found.optimizer.state[parameter].items()}
    found.model.textual_proj.weight.register_hook(lambda grad: grad * float("inf"))
    start_step(found, batch)
    after = found.optimizer.state[parameter]
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert found.halted.item() == 1


def give_gradients(monkeypatch: pytest.MonkeyPatch, is_finite: Callable[[int], bool]) -> None:
    """Replace the gradients of each step by zeros, with a NaN where `is_finite(step)` is false."""
    real = step.compute_gradients

    def compute(found: Training, batch: Batch) -> Losses:
        losses = real(found, batch)
        for parameter in found.model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        if not is_finite(found.step + 1):
            found.model.visual_proj.weight.grad[0, 0] = float("nan")  # type: ignore[index, operator, union-attr]
        return losses

    monkeypatch.setattr(step, "compute_gradients", compute)


@pytest.mark.parametrize(
    ("first", "steps", "n_skipped"), [(3, 20, 10), (1, 4, 4)], ids=["in the run", "from the first step"]
)
def test_a_gradient_that_is_never_finite_in_fp16_ends_the_run_without_a_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    first: int,
    steps: int,
    n_skipped: int,
) -> None:
    monkeypatch.setattr(step, "MAX_SKIPPED", 10)
    give_gradients(monkeypatch, lambda number: number < first)
    assert run(tmp_path / "run", "precision=fp16", f"steps={steps}", "save.every=100", "log.every=5") == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "not finite" in line]
    assert f"fp16 has skipped {n_skipped} steps in a row; step {first + n_skipped - 1}: the gradient is not" in line
    assert "gradients are not finite: visual_proj.weight." in line
    assert not (tmp_path / "run" / "model").exists()


def test_a_search_for_the_scale_in_fp16_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MAX_SKIPPED", 4)
    give_gradients(monkeypatch, lambda number: number % 4 == 0)
    assert run(tmp_path / "run", "precision=fp16", "steps=11", "save.every=100", "evaluation.every=0") == 0


def test_towers_of_fp32_runs_use_tf32_and_losses_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for precision, expected in (("fp32", [True, False]), ("bf16", [False, False])):
        found = small_run(tmp_path / precision, f"precision={precision}")
        seen: list[bool] = []

        def spied(
            name: str, model: Any = found.model, seen: list[bool] = seen, patch: Any = monkeypatch.setattr
        ) -> None:
            real = getattr(model, name)

            def call(*values: Any) -> Any:
                seen.append(torch.backends.cuda.matmul.allow_tf32)
                return real(*values)

            patch(model, name, call)

        spied("image_features")
        spied("losses")
        update(found, next(iter(found.loader)))
        assert seen == expected
        assert not torch.backends.cuda.matmul.allow_tf32


def test_terms_are_computed_in_steps_that_are_logged(tmp_path: Path) -> None:
    found = small_run(tmp_path / "run", "log.every=2")
    batches = iter(found.loader)
    first, second = (update(found, next(batches)) for _ in range(2))
    assert "loss/contrastive" in second
    assert first.keys() == {"loss/total", "grad_norm", "stop", "failed", "lr"}


def test_features_that_are_all_not_finite_are_a_matter_of_the_learning_rate() -> None:
    model, batch = small_model("clip"), dataclasses.replace(small_batch(8), keys=tuple("abcdefgh"))
    model.visual_proj.weight.data.fill_(torch.nan)
    message = describe_nonfinite(model, batch, {"loss/total": math.nan}, 2, None)
    assert "The features of 8 of 8 samples are not finite: the weights diverged" in message
    assert "these samples" not in message
    assert "A lower optim.lr" in message
