"""Options of the optimizer in complete runs: their effect, exact resumption, and several processes."""

import re
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.small_run import kill, run_forked, small_run
from tests.trainer.training.test_loop import read_metrics, read_weights
from trainer.checkpoints.model import load_model
from trainer.distributed.process import StopRequest
from trainer.models.dual_encoder import DualEncoder
from trainer.training.build import Training
from trainer.training.results import evaluate, save_trained_model
from trainer.training.step import update

OPTIONS = (
    "optim.max_gradient_norm=0.05",
    "optim.ema=0.9",
    "optim.schedule=wsd",
    "optim.decay_steps=3",
    "optim.lr_ratios={textual.resblocks.*: 0.5, visual: 0.1}",
    "optim.frozen_until={visual.blocks.0: 4, textual.posit_embed: null}",
)
"""All options of the optimizer at once."""
RANDOM = ("model.image.patch_dropout=0.5", "data.augment={flip: 0.5, jitter: 0.5, greyscale: 0.5}")
"""Options that draw random numbers, which differ between the processes of a run."""


def first_moments(run: Training) -> dict[str, Tensor]:
    """AdamW's mean gradients, by the names of the parameters that have one."""
    found = ((name, run.optimizer.state.get(value, {})) for name, value in run.model.named_parameters())
    return {name: state["exp_avg"] for name, state in found if state}


def test_a_gradient_above_the_maximum_norm_is_scaled_down_to_it_and_logged_as_it_was(tmp_path: Path) -> None:
    free, limited, loose = (
        small_run(tmp_path / "run", f"optim.max_gradient_norm={limit}") for limit in ("null", 0.25, 1e6)
    )
    batch = next(iter(free.loader))
    values = [update(run, batch) for run in (free, limited, loose)]
    assert values[0]["grad_norm"] > 0.5
    assert values[0] == values[1] == values[2]
    expected = first_moments(free)
    for name, found in first_moments(limited).items():
        torch.testing.assert_close(found, expected[name] * 0.25 / values[0]["grad_norm"])
    assert all(torch.equal(found, expected[name]) for name, found in first_moments(loose).items())


def test_the_longest_matching_pattern_selects_the_learning_rate_of_a_parameter(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "optim.lr_ratios={visual: 0.5, visual.blocks.1: 0.25, '*.bias': 0}", "lr=0.125")
    run.step = 2
    assert update(run, next(iter(run.loader)))["lr"] == 0.125
    rates = {id(value): group["lr"] for group in run.optimizer.param_groups for value in group["params"]}
    found = {name: rates[id(value)] for name, value in run.model.named_parameters() if id(value) in rates}
    assert found["visual.blocks.1.mlp.fc1.weight"] == 0.03125
    assert found["visual.blocks.0.mlp.fc1.weight"] == found["visual.norm.weight"] == 0.0625
    assert found["textual.ln_final.bias"] == 0
    assert found["visual.norm.bias"] == 0  # `*.bias` is as long as `visual`, and comes first in the alphabet
    assert found["textual.ln_final.weight"] == 0.125


def test_a_frozen_block_keeps_its_weights_until_its_step_and_another_one_for_good(tmp_path: Path) -> None:
    run = small_run(
        tmp_path / "run",
        "optim.frozen_until={visual.blocks.0: 2, textual.resblocks.1: null}",
        "optim.warmup_steps=0",
        "optim.schedule=constant",
    )
    before = {name: value.detach().clone() for name, value in run.model.named_parameters()}

    def moved(name: str) -> bool:
        return not torch.equal(run.model.get_parameter(name), before[name])

    batches = iter(run.loader)
    for expected in (False, False, True):
        update(run, next(batches))
        assert all(moved(name) == expected for name in before if name.startswith("visual.blocks.0."))
        assert run.model.get_submodule("visual.blocks.0").training == expected
    assert not any(moved(name) for name in before if name.startswith("textual.resblocks.1."))
    assert not run.model.get_submodule("textual.resblocks.1").training
    assert moved("visual.blocks.1.mlp.fc1.weight")
    assert "visual.blocks.0.mlp.fc1.weight" in first_moments(run)
    assert "textual.resblocks.1.mlp.c_fc.weight" not in first_moments(run)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("optim.lr_ratios={vision: 0.1}", "optim.lr_ratios: 'vision' matches no parameter; the parts of the model are"),
        ("optim.frozen_until={visual.blocks.2: 1}", "optim.frozen_until: 'visual.blocks.2' matches no parameter"),
        ("optim.frozen_until={'*': 1}", "freezes all parameters in the first step"),
        ("optim.frozen_until={visual: -1}", "optim.frozen_until.visual is -1; give 0 or more"),
    ],
)
def test_patterns_that_select_nothing_or_freeze_everything_are_errors(
    tmp_path: Path, option: str, message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        small_run(tmp_path / "run", option)


def test_evaluations_and_the_saved_model_use_the_moving_average_and_training_does_not(tmp_path: Path) -> None:
    output = tmp_path / "run"
    found, plain = small_run(output, "optim.ema=0.5", "lr=0.1"), small_run(output, "lr=0.1")
    expected = {name: value.clone() for name, value in plain.model.state_dict().items()}
    for step, batch in zip(range(5), plain.loader, strict=False):
        update(plain, batch)
        update(found, batch)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = {
            name: decay * expected[name] + (1 - decay) * value for name, value in plain.model.state_dict().items()
        }
    assert all(torch.equal(a, b) for a, b in zip(found.model.parameters(), plain.model.parameters(), strict=True))
    assert not torch.allclose(expected["visual_proj.weight"], plain.model.visual_proj.weight)
    evaluated: list[DualEncoder] = []
    found.evaluation = lambda model, *_, **__: evaluated.append(deepcopy(model)) or {}  # type: ignore[assignment, func-returns-value, return-value]
    evaluate(found, None, StopRequest())
    save_trained_model(found)
    for state in (evaluated[0].state_dict(), load_model(output / "model").model.state_dict()):
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value)
    assert all(torch.equal(a, b) for a, b in zip(found.model.parameters(), plain.model.parameters(), strict=True))


def test_a_killed_run_with_all_options_resumes_with_identical_metrics_and_weights(tmp_path: Path) -> None:
    whole, output = tmp_path / "whole", tmp_path / "run"
    options = (*OPTIONS, *RANDOM, "steps=8", "save.every=3")
    assert run_forked(whole, *options) == [0]
    assert run_forked(output, *options, at=5, faults=[kill]) == [-9]
    assert run_forked(output, *options) == [0]
    assert read_metrics(output) == read_metrics(whole)
    for expected, found in zip(read_weights(whole), read_weights(output), strict=True):
        assert torch.equal(expected, found)


@pytest.mark.rest
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_with_all_options_train_as_one(tmp_path: Path, free_port: int, strategy: str) -> None:
    options = (*OPTIONS, "model_name=meru", "steps=6")  # boxes of HyCoCLIP are not compared across processes
    assert run_forked(tmp_path / "one", *options) == [0]
    assert run_forked(
        tmp_path / "two", *options, f"parallel.strategy={strategy}", port=free_port, faults=[None, None]
    ) == [0, 0]
    for expected, found in zip(read_metrics(tmp_path / "one"), read_metrics(tmp_path / "two"), strict=True):
        own = {"data/padding_share": found["data/padding_share"]}  # each process pads to its longest text
        assert found == pytest.approx(expected | own, rel=1e-3)
