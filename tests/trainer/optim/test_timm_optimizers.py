"""Optimizers of timm: built by name, resumed to the bit, and stepped only by finite gradients."""

from pathlib import Path

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.small import small_model
from tests.trainer.small_run import run, small_config, small_run, terminate
from trainer.optim.config import OptimConfig
from trainer.optim.optimizer import build_optimizer
from trainer.training.step import start_step


def test_muon_updates_matrices_to_nearly_orthogonal_ones() -> None:
    model = small_model("meru")
    optimizer = build_optimizer(model, OptimConfig(name="muon", kwargs={"momentum": 0.9}, weight_decay=0.0, lr=1.0))
    assert optimizer.param_groups[0]["momentum"] == 0.9
    matrix, scale = model.visual_proj.weight, model.logit_scale
    before, gradient = matrix.detach().clone(), torch.randn(matrix.shape, generator=torch.manual_seed(0))
    matrix.grad, scale.grad = gradient, torch.ones_like(scale)
    optimizer.step()
    found = torch.linalg.svdvals(before - matrix.detach())
    assert found.max() / found.min() < 2 < torch.linalg.cond(gradient)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("nothing", {}, "optim.name=nothing .* does not work"),
        ("lion", {"no": 1}, "optim.name=lion .* does not work: .*no"),
        ("lookahead_lion", {}, "a state that checkpoints cannot hold"),
    ],
)
def test_an_optimizer_that_cannot_be_used_is_an_error(name: str, kwargs: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_optimizer(small_model("meru"), OptimConfig(name=name, kwargs=kwargs))


@pytest.mark.parametrize(
    "arguments",
    [
        ["optim.name=muon", "optim.kwargs={momentum: 0.9}"],
        pytest.param(["optim.name=adopt"], marks=pytest.mark.rest),
        pytest.param(["optim.name=adabelief"], marks=pytest.mark.rest),  # counts its steps in numbers, not tensors
    ],
)
def test_a_run_stopped_and_resumed_has_the_bytes_of_one_that_is_not(tmp_path: Path, arguments: list[str]) -> None:
    values = ["steps=4", "save.every=2", "evaluation.every=0", *arguments]
    assert run(tmp_path / "whole", *values) == 0
    assert run(tmp_path / "parts", *values, at=2, fault=terminate) > 0
    assert run(tmp_path / "parts", *values) == 0
    whole, parts = (tmp_path / name / "checkpoints/step_00000004/state.safetensors" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()


def test_a_gradient_that_is_not_finite_changes_no_weight(tmp_path: Path) -> None:
    found = small_run(tmp_path / "run", "optim.name=lion")
    before = {name: value.clone() for name, value in found.model.state_dict().items()}
    for parameter in found.model.visual_proj.parameters():
        parameter.register_hook(lambda gradient: gradient * torch.nan)
    start_step(found, next(iter(found.loader)))
    assert all(torch.equal(value, before[name]) for name, value in found.model.state_dict().items())


def test_fsdp_refuses_other_optimizers_than_adamw(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="fsdp; use ddp"):
        small_config(tmp_path / "run", "optim.name=muon", "parallel.strategy=fsdp")
