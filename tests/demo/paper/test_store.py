"""Files with the results of runs: the same metrics and items as the evaluation, and when a run has to be repeated."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from demo.paper.plan import Run, plan, tasks_of
from demo.paper.sets import data_settings
from demo.paper.sizes import SIZES
from demo.paper.store import has_result, missing_results, read_result, write_result
from hypergrit_common.errors import UserError
from hypergrit_common.json_file import write_object
from trainer.evaluation.metrics.items import Items, mean_items, pair_items, write_items

SIZE = replace(SIZES["smoke"], variants=("hycoclip",), seeds=2)
SCORES = torch.randn(9, generator=torch.Generator().manual_seed(0)).double()
ITEMS: dict[str, Items] = {
    "a/order": mean_items(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0, 0, 1])),
    "a/auc": pair_items(SCORES[:4], SCORES[4:], (torch.arange(4), torch.arange(5)), "auc"),
}


def make_runs(folder: Path) -> list[Run]:
    return plan(folder, folder / "results", SIZE, data_settings(SIZE), 0)


def evaluate(run: Run, items: Mapping[str, Items] = ITEMS) -> None:
    """Write files as `trainer.evaluate` does."""
    run.evaluated.mkdir(parents=True)
    for task in tasks_of(run.seed):
        write_object({"metrics": {"b": None, "c": 0.25}, "chance": {"c": 0.5}}, run.evaluated / f"{task}.json")
    values = {name: found.metric() for name, found in items.items()}
    write_object({"metrics": values, "chance": {}}, run.evaluated / "order.json")
    write_items(items, run.evaluated / "order.npz")


def test_a_result_has_the_metrics_and_items_of_the_evaluation(tmp_path: Path) -> None:
    run = make_runs(tmp_path)[0]
    evaluate(run)
    write_result(run, {"machine": "m"})
    found = read_result(run.result)
    assert found.facts["machine"] == "m"
    assert found.metrics["retrieval:c"] == 0.25
    assert found.chance["retrieval:c"] == 0.5
    assert "retrieval:b" not in found.metrics
    assert set(found.items) == {"order:a/order", "order:a/auc"}
    for name, items in ITEMS.items():
        read = found.items[f"order:{name}"]
        assert read.reduction == items.reduction
        for field in ("values", "units", "is_true"):
            assert np.array_equal(getattr(read, field), getattr(items, field))
        assert found.metrics[f"order:{name}"] == items.metric()


def test_units_are_numbered_in_order_of_appearance(tmp_path: Path) -> None:
    run = make_runs(tmp_path)[0]
    evaluate(run, {"a/order": mean_items(torch.ones(5), torch.tensor([2**40, 7, 2**40, 9, 7]))})
    write_result(run, {})
    assert read_result(run.result).items["order:a/order"].units.tolist() == [0, 1, 0, 2, 1]


def test_a_run_is_missing_without_a_result_of_its_settings_and_data(tmp_path: Path) -> None:
    first, second = make_runs(tmp_path)
    evaluate(first)
    write_result(first, {})
    assert missing_results([first, second]) == [second]
    other = plan(tmp_path, tmp_path / "results", replace(SIZE, steps=13), data_settings(SIZE), 0)[0]
    assert not has_result(other)
    first.result.write_bytes(first.result.read_bytes()[:-20])
    assert not has_result(first)
    with pytest.raises(UserError, match=r"hycoclip-0\.parquet cannot be read"):
        read_result(first.result)


def test_a_missing_file_of_the_evaluation_is_an_error_that_names_it(tmp_path: Path) -> None:
    run = make_runs(tmp_path)[1]
    evaluate(run)
    (run.evaluated / "order.json").unlink()
    with pytest.raises(UserError, match=r"order\.json"):
        write_result(run, {})
    assert not run.result.exists()
