"""Options of the optimizer in complete runs: their effect, exact resumption, and several processes."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.trainer.small_run import kill, run_forked, small_run
from tests.trainer.test_loop import read_metrics, read_weights
from trainer.build import Run
from trainer.step import update

OPTIONS = ("optim.max_gradient_norm=0.05",)
"""All options at once."""


def first_moments(run: Run) -> dict[str, Tensor]:
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


def test_a_killed_run_with_all_options_resumes_with_identical_metrics_and_weights(tmp_path: Path) -> None:
    whole, output = tmp_path / "whole", tmp_path / "run"
    assert run_forked(whole, *OPTIONS) == [0]
    assert run_forked(output, *OPTIONS, at=8, faults=[kill]) == [-9]
    assert run_forked(output, *OPTIONS) == [0]
    assert read_metrics(output) == read_metrics(whole)
    for expected, found in zip(read_weights(whole), read_weights(output), strict=True):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_with_all_options_train_as_one(tmp_path: Path, free_port: int, strategy: str) -> None:
    options = (*OPTIONS, "model_name=meru", "steps=6")  # boxes of HyCoCLIP are not compared across processes
    assert run_forked(tmp_path / "one", *options) == [0]
    assert run_forked(
        tmp_path / "two", *options, f"parallel.strategy={strategy}", port=free_port, faults=[None, None]
    ) == [0, 0]
    for expected, found in zip(read_metrics(tmp_path / "one"), read_metrics(tmp_path / "two"), strict=True):
        assert found == pytest.approx(expected, rel=1e-3)
