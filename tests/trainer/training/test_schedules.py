"""Runs whose settings have a course: what they log, save, evaluate and resume, on one process and on two."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hypergrit_common.errors import UserError
from tests.trainer.small_run import kill_once_saved, run, run_forked, small_run
from trainer import load_model
from trainer.training import results
from trainer.training.step import update

SCHEDULES = (
    "model.schedules={curv_init: {course: log, values: [1, 0.25], steps: [0, 12]}, temperature_init: {course: linear, "
    "values: [0.1, 0.05], steps: [2, 12]}, entail_weight: [{course: constant, values: [0.1], steps: [0, 4]}, "
    "{course: cosine, values: [0.1, 0.3], steps: [4, 10]}]}"
)


def rows(output: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    timed = ("samples_per_s", "data_wait_share", "paused_s")
    return [{key: value for key, value in row.items() if key not in timed} for row in found]


def test_each_row_has_the_values_of_its_step_and_the_model_those_after_the_last(tmp_path: Path) -> None:
    output = tmp_path / "run"
    assert run(output, SCHEDULES, "optim.ema=0.9") == 0
    found = rows(output)
    assert [row["schedule/curv_init"] for row in found] == pytest.approx([0.25 ** (step / 12) for step in range(12)])
    assert [row["geometry/curvature"] for row in found] == pytest.approx([row["schedule/curv_init"] for row in found])
    scales = [row["geometry/logit_scale"] for row in found]
    assert scales == pytest.approx([1 / row["schedule/temperature_init"] for row in found])
    assert [row["schedule/entail_weight"] for row in found][:5] == [0.1] * 5
    model = load_model(output, device="cpu")
    assert model.module.config.curv_init == 0.25  # type: ignore[attr-defined]
    assert model.module.config.entail_weight == 0.3  # type: ignore[attr-defined]
    assert model.module.scalars()["curvature"].item() == pytest.approx(0.25)
    assert model.record["training"]["model"]["curv_init"] == 1.0  # as it was given


def test_a_run_that_was_killed_goes_on_with_the_same_values(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(whole, SCHEDULES) == 0
    assert run_forked(killed, SCHEDULES, faults=[kill_once_saved(killed, 5)], at=7) == [-9]
    assert run(killed, SCHEDULES) == 0
    assert rows(killed) == rows(whole)
    name = "checkpoints/step_00000012/state.safetensors"
    assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert run(killed, SCHEDULES.replace("0.25", "0.5")) == 2  # another course is another setting


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.rest)])
def test_two_processes_train_as_one_with_the_same_values(tmp_path: Path, free_port: int, strategy: str) -> None:
    assert run(tmp_path / "one", SCHEDULES, "steps=12") == 0
    settings = (SCHEDULES, f"parallel.strategy={strategy}", "micro_batch_size=3")
    assert run_forked(tmp_path / "two", *settings, port=free_port, faults=[None, None]) == [0, 0]
    for one, two in zip(rows(tmp_path / "one"), rows(tmp_path / "two"), strict=True):
        assert all(two[key] == value for key, value in one.items() if "schedule" in key)
        assert two["loss/total"] == pytest.approx(one["loss/total"], rel=1e-3)
    saved = [json.loads((tmp_path / name / "model" / "config.json").read_text())["config"] for name in ("one", "two")]
    assert saved[0] == saved[1]


def test_an_evaluation_has_the_values_with_which_the_next_step_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = "model.schedules.min_radius={course: linear, values: [0.1, 0.2], steps: [0, 2]}"
    training, seen = small_run(tmp_path / "run", course), list[float]()
    monkeypatch.setattr(training, "evaluation", lambda model, *_, **__: seen.append(model.config.min_radius))
    batch, request = next(iter(training.loader)), Mock(signal_number=None)
    for _ in range(2):
        update(training, batch)
        results.evaluate(training, None, request)
    assert seen == pytest.approx([0.15, 0.2])
    training.loader.close()


def test_a_course_without_effect_is_an_error_in_the_first_step(tmp_path: Path) -> None:
    course = "model.schedules.calibration_weight={course: linear, values: [1, 10], steps: [0, 5]}"
    training = small_run(tmp_path / "run", "model_name=uncha", "model.use_boxes=false", course)
    with pytest.raises(UserError, match=r"model\.schedules: no step reads calibration_weight"):
        update(training, next(iter(training.loader)))
    training.loader.close()
