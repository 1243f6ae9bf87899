"""Models, steps and runs on each device. With a GPU, the same assertions hold there."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.devices import DEVICES
from tests.trainer.small import NAMES, most_in_rest, small_batch, small_model
from tests.trainer.small_run import run, small_run, terminate
from trainer.distributed.process import Process, distribute, process_group
from trainer.models.dual_encoder import DualEncoder
from trainer.training import build as build_module
from trainer.training.step import start_step, update

ON_DEVICES = pytest.mark.parametrize("device", DEVICES)


def loss_and_gradients(model: DualEncoder, device: str, dtype: torch.dtype) -> tuple[float, torch.Tensor]:
    """The loss of a small batch, and all gradients."""
    batch = small_batch().map(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
    losses = model.to(device, dtype)(batch.to(device))
    losses.loss.backward()
    gradients = [p.grad.flatten().double().cpu() for p in model.parameters() if p.grad is not None]
    return losses.loss.item(), torch.cat(gradients)


@ON_DEVICES
@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients_of_every_model_are_those_in_float64(name: str, device: str) -> None:
    expected, exact = loss_and_gradients(small_model(name), "cpu", torch.float64)
    loss, gradients = loss_and_gradients(small_model(name), device, torch.float32)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert (gradients - exact).norm() < 1e-3 * exact.norm()


@contextmanager
def no_waiting(device: str) -> Iterator[None]:
    """On a GPU, raise an error at each operation that waits for it."""
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")


@ON_DEVICES
@pytest.mark.parametrize("precision", most_in_rest("fp32", ("fp32", "bf16", "bf16 bf16_parameters=true")))
@pytest.mark.parametrize("name", most_in_rest("phyclip", ("hycoclip", "phyclip")))
def test_steps_are_queued_without_waiting_and_learn(tmp_path: Path, name: str, precision: str, device: str) -> None:
    factors = ["model.factor_dim=8"] if name == "phyclip" else []
    others = (f"model_name={name}", *f"precision={precision}".split(), *factors, "lr=0.003")
    trained = small_run(tmp_path / "run", *others, process=Process(device=torch.device(device)))
    batch = next(iter(trained.loader)).to(device)
    update(trained, batch)  # loads the kernels
    with no_waiting(device):
        steps = [start_step(trained, batch) for _ in range(11)]
    losses = [step.read()["loss/total"] for step in steps]
    assert losses[-1] < 0.8 * losses[0]


@ON_DEVICES
def test_weights_after_a_step_are_those_of_the_cpu(tmp_path: Path, device: str) -> None:
    weights = []
    for name in ("cpu", device):
        trained = small_run(tmp_path / "run", "optim.warmup_steps=0", process=Process(device=torch.device(name)))
        update(trained, next(iter(trained.loader)).to(name))
        weights.append(torch.cat([p.detach().flatten().cpu() for p in trained.model.parameters()]))
    # Adam's first step moves each weight by the learning rate, 0.01, even those whose gradient is only rounding.
    moved_alike = (weights[0] - weights[1]).abs() < 1e-4
    assert moved_alike.double().mean() > 0.98


def metrics(output: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: row[name] for name in ("step", "loss/total", "grad_norm")} for row in rows if "loss/total" in row]


@pytest.mark.rest
@ON_DEVICES
def test_a_run_that_is_stopped_resumes_with_the_same_losses(tmp_path: Path, device: str) -> None:
    settings = (f"device={device}", "steps=8", "save.every=100", "data.workers=1")
    assert run(tmp_path / "whole", *settings) == 0
    assert run(tmp_path / "stopped", *settings, at=4, fault=terminate) != 0
    assert run(tmp_path / "stopped", *settings) == 0
    expected, found = metrics(tmp_path / "whole"), metrics(tmp_path / "stopped")
    assert len(found) == 8
    for row, expected_row in zip(found, expected, strict=True):
        assert row == pytest.approx(expected_row, rel=0 if device == "cpu" else 1e-2)


@ON_DEVICES
@pytest.mark.parametrize("strategy", most_in_rest("ddp", ("ddp", "fsdp")))
def test_ddp_and_fsdp_on_one_rank_train_as_a_single_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int, strategy: str, device: str
) -> None:
    settings = (f"parallel.strategy={strategy}", "optim.warmup_steps=0")
    alone = small_run(tmp_path / "run", *settings, process=Process(device=torch.device(device)))
    batches = [next(iter(alone.loader)).to(device) for _ in range(3)]
    expected = [update(alone, batch) for batch in batches]
    named = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port}
    for name, value in named.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(build_module, "wrap", distribute)
    with process_group(device, 60) as process:
        together = small_run(tmp_path / "run", *settings, process=process)
        assert together.wrapped is not together.model or strategy == "fsdp"
        found = [update(together, batch) for batch in batches]
    for row, expected_row in zip(found, expected, strict=True):
        assert row["loss/total"] == pytest.approx(expected_row["loss/total"], rel=1e-3)
        assert row["grad_norm"] == pytest.approx(expected_row["grad_norm"], rel=1e-2)
