"""Low-rank updates: their formula, what they train, resuming, and the models that are saved."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.small_run import kill, run_forked, small_run
from tests.trainer.training.test_loop import read_metrics, read_weights
from trainer.checkpoints.model import load_model
from trainer.optim.config import LoRAConfig
from trainer.optim.freeze import LowRank, add_lora, is_update
from trainer.training.build import Training
from trainer.training.results import save_trained_model
from trainer.training.step import update

LORA = "lora={ranks: {visual.blocks.*.attn: 2, textual.resblocks: 3, 'textual.resblocks.1': 0}, alpha: 8}"
FROZEN = "optim.frozen_until={visual: null, textual: null}"


def trained(run: Training, n_steps: int = 3) -> dict[str, Tensor]:
    """The parameters that `n_steps` change, by name, with their values before."""
    before = {name: value.detach().clone() for name, value in run.model.named_parameters()}
    batches = iter(run.loader)
    for _ in range(n_steps):
        update(run, next(batches))
    return {name: before[name] for name, value in run.model.named_parameters() if not torch.equal(value, before[name])}


def test_each_projection_of_a_fused_matrix_has_an_update_of_its_own() -> None:
    weight = torch.randn(6, 5)
    low_rank = LowRank(weight, rank=2, scale=4.0, n_parts=3)
    assert torch.equal(low_rank(weight), weight)
    torch.nn.init.normal_(low_rank.up)
    parts = [weight[2 * i : 2 * i + 2] + 4.0 * low_rank.up[i] @ low_rank.down[i] for i in range(3)]
    torch.testing.assert_close(low_rank(weight), torch.cat(parts))


def test_the_first_loss_is_that_of_the_model_and_only_updates_and_unfrozen_parts_are_trained(tmp_path: Path) -> None:
    plain, adapted = small_run(tmp_path / "plain"), small_run(tmp_path / "run", LORA, FROZEN)
    batch = next(iter(plain.loader))
    assert plain.model(batch).loss == adapted.model(batch).loss
    names = set(trained(adapted))
    updates = {name for name in names if is_update(name)}
    towers = {name for name in names if name.startswith(("visual.", "textual."))}
    assert towers == updates
    assert {name.partition(".parametrizations.")[0] for name in updates if name.startswith("visual.")} == {
        f"visual.blocks.{block}.attn.{layer}" for block in range(2) for layer in ("qkv", "proj")
    }
    assert any(name.startswith("textual.resblocks.0.") for name in updates)
    assert not any(name.startswith("textual.resblocks.1.") for name in updates)
    assert "visual_proj.weight" in names


def test_the_saved_model_is_one_without_lora_and_gives_the_same_features(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", LORA)
    trained(run)
    save_trained_model(run)
    loaded = load_model(tmp_path / "run" / "model").model
    assert not any(is_update(name) for name in loaded.state_dict())
    batch = next(iter(run.loader))
    with torch.no_grad():
        expected, found = (model.eval()(batch).loss for model in (run.model, loaded))
    assert found == expected


@pytest.mark.rest
def test_a_killed_run_resumes_with_the_same_updates(tmp_path: Path) -> None:
    whole, output = tmp_path / "whole", tmp_path / "run"
    assert run_forked(whole, LORA, FROZEN) == [0]
    assert run_forked(output, LORA, FROZEN, at=8, faults=[kill]) == [-9]
    assert run_forked(output, LORA, FROZEN) == [0]
    assert read_metrics(output) == read_metrics(whole)
    for expected, found in zip(read_weights(whole), read_weights(output), strict=True):
        assert torch.equal(expected, found)


@pytest.mark.rest
def test_two_processes_train_as_one(tmp_path: Path, free_port: int) -> None:
    options = (LORA, FROZEN, "model_name=meru", "steps=4")
    assert run_forked(tmp_path / "one", *options) == [0]
    assert run_forked(tmp_path / "two", *options, port=free_port, faults=[None, None]) == [0, 0]
    for expected, found in zip(read_metrics(tmp_path / "one"), read_metrics(tmp_path / "two"), strict=True):
        own = {"data/padding_share": found["data/padding_share"]}  # each process pads to its longest text
        assert found == pytest.approx(expected | own, rel=1e-3)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lora={ranks: {visual.nothing: 2}}", r"lora\.ranks: 'visual\.nothing' matches no parameter"),
        ("lora={ranks: {visual.norm.weight: 2}}", r"lora\.ranks: 'visual\.norm\.weight' matches no parameter"),
        ("lora={ranks: {visual: -1}}", r"ranks\.visual is -1"),
        ("lora={ranks: {visual: 2}, alpha: 0}", r"alpha is 0"),
    ],
)
def test_settings_that_select_nothing_are_errors(tmp_path: Path, setting: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        small_run(tmp_path / "run", setting)


@pytest.mark.parametrize(("is_stabilised", "scale"), [(False, 2.0), (True, 4.0)])
def test_stabilised_updates_are_divided_by_the_root_of_the_rank(is_stabilised: bool, scale: float) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(5, 6))
    add_lora(module, LoRAConfig(ranks={"0": 4}, alpha=8.0, rank_stabilised=is_stabilised))
    assert [part.scale for part in module.modules() if isinstance(part, LowRank)] == [scale]
