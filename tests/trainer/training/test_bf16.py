"""Blocks with bf16 copies of their weights: the optimizer, checkpoints and the saved model have fp32 weights."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hypergrit_common.errors import UserError
from tests.trainer.distributed.test_precision import join_group, start
from tests.trainer.small_run import run, small_config, small_run, terminate
from trainer.config import TrainConfig
from trainer.training.accumulate import tower_blocks
from trainer.training.build import Training, build
from trainer.training.step import compute_gradients

BF16 = ("precision=bf16", "bf16_parameters=true", "data.text_multiple=8", "optim.warmup_steps=0")


@pytest.mark.parametrize("keys", [(), ("micro_batch_size=4", "checkpoint_activations=true")])
def test_blocks_compute_with_bf16_weights_and_streams_and_the_optimizer_updates_fp32_weights(
    tmp_path: Path, keys: tuple[str, ...]
) -> None:
    found = small_run(tmp_path / "run", *BF16, *keys)
    used: set[torch.dtype] = set()
    for block in tower_blocks(found.model):
        block.register_forward_hook(lambda _, inputs, output: used.add(output.dtype))
        for name, module in block.named_modules():
            if name.endswith("attn"):
                module.register_forward_pre_hook(lambda owner, _: used.update(w.dtype for w in owner.parameters()))
    before = {name: value.detach().clone() for name, value in found.model.named_parameters()}
    losses = compute_gradients(found, next(iter(found.loader)))
    assert used == {torch.bfloat16}
    assert losses.loss.isfinite()
    for value in found.model.parameters():
        assert value.dtype == torch.float32
        assert value.grad is None or value.grad.dtype == torch.float32
    found.optimizer.step()
    moved = [not torch.equal(value, before[name]) for name, value in found.model.named_parameters() if "blocks" in name]
    assert sum(moved) > 0.9 * len(moved)
    change = found.model.get_parameter("visual.blocks.0.mlp.fc1.weight") - before["visual.blocks.0.mlp.fc1.weight"]
    assert not torch.equal(change, change.bfloat16().float())  # of a master, not of its copy


def test_the_gradients_of_bf16_weights_are_close_to_those_of_fp32(tmp_path: Path) -> None:
    gradients = [flat_gradients(small_run(tmp_path / "run", *keys)) for keys in ((), BF16[:2])]
    assert torch.cosine_similarity(*gradients, dim=0) > 0.999


def test_a_run_with_bf16_weights_resumes_to_the_bit_from_fp32_weights(tmp_path: Path) -> None:
    keys = (*BF16, "steps=4", "save.every=2", "evaluation.every=0")
    assert run(tmp_path / "whole", *keys) == 0
    assert run(tmp_path / "parts", *keys, at=2, fault=terminate) > 0
    assert run(tmp_path / "parts", *keys) == 0
    whole, parts = (load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "parts"))
    stored = load_file(tmp_path / "whole/checkpoints/step_00000004/state.safetensors")
    for name, value in whole.items():
        assert value.dtype == torch.float32
        assert torch.equal(value, parts[name])
        assert torch.equal(value, stored[f"model/{name}"])


def test_bf16_weights_need_the_precision_bf16(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs precision=bf16, but the precision of this run is fp32"):
        small_run(tmp_path / "other", "bf16_parameters=true")


def flat_gradients(run: Training) -> torch.Tensor:
    compute_gradients(run, next(iter(run.loader)))
    return torch.cat([p.grad.flatten() for p in run.model.parameters() if p.grad is not None])


def one_rank(rank: int, config: TrainConfig, folder: Path) -> None:
    with join_group(rank) as process:
        torch.save(flat_gradients(build(config, process)), folder / f"{rank}.pt")


def test_two_processes_with_bf16_weights_have_the_gradients_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("TEST_PORT", str(free_port))
    alone = flat_gradients(small_run(tmp_path / "run", *BF16, "model_name=meru"))
    start(one_rank, small_config(tmp_path / "run", *BF16, "model_name=meru"), tmp_path)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert torch.equal(*found)  # DDP has averaged them
    assert torch.cosine_similarity(found[0], alone, dim=0) > 0.9995


@pytest.mark.rest
def test_compiled_blocks_are_compiled_once_for_all_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: real(function, backend="aot_eager"))
    found = small_run(tmp_path / "run", *BF16, "compile=true")
    batch = next(iter(found.loader))
    compute_gradients(found, batch)
    with torch._dynamo.config.patch(error_on_recompile=True):  # type: ignore[attr-defined]
        assert compute_gradients(found, batch).loss.isfinite()
