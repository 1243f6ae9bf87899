"""Files with the results of runs: the same metrics and items as the evaluation, and when a run has to be repeated."""

from pathlib import Path

import numpy as np
import pytest
import torch

from demo.paper.plan import VARIANTS
from demo.paper.results import row_of
from demo.paper.store import has_result, read_result, write_result
from hypergrit_common.errors import UserError
from trainer.evaluation.metrics.items import Items, mean_items, pair_items
from trainer.evaluation.task import TaskResult

SCORES = torch.randn(9, generator=torch.Generator().manual_seed(0)).double()
ITEMS: dict[str, Items] = {
    "accuracy": mean_items(torch.tensor([0.0, 1.0, 0.5])),
    "a/order": mean_items(torch.ones(5), torch.tensor([2**40, 7, 2**40, 9, 7])),
    "a/auc": pair_items(SCORES[:4], SCORES[4:], (torch.arange(4), torch.arange(5)), "auc"),
}
FACTS = {"identity": {"seed": 0, "at": (3,)}, "machine": "m"}


def write(path: Path, *, items: bool = True) -> None:
    metrics = {name: found.metric() for name, found in ITEMS.items()}
    result = TaskResult(metrics=metrics, chance={"accuracy": 0.25}, n_used=5, items=ITEMS)
    write_result(path, {"": {"order": result}, "seen/": {"order": result}}, FACTS, items)


def test_a_result_has_the_metrics_and_the_items_of_means(tmp_path: Path) -> None:
    write(path := tmp_path / "row-0.parquet")
    found = row_of(VARIANTS["clip"], {3: read_result(path)})
    assert found.facts[3]["machine"] == "m"
    assert found.chance.to_dict() == {"order:accuracy": 0.25, "order:seen/accuracy": 0.25}
    assert set(found.metrics) == {f"order:{prefix}{name}" for prefix in ("", "seen/") for name in ITEMS}
    means = {f"order:{prefix}{name}" for prefix in ("", "seen/") for name in ("accuracy", "a/order")}
    assert set(found.items) == {(3, name) for name in means}
    for name in ("accuracy", "a/order"):
        values = found.items[3, f"order:{name}"].values
        assert np.array_equal(values, ITEMS[name].values)
        assert values.mean() == found.metrics[f"order:{name}"][3]
    assert found.items[3, "order:accuracy"].units.tolist() == [0, 1, 2]
    assert found.items[3, "order:a/order"].units.tolist() == [0, 1, 0, 2, 1]


def test_rows_of_ablations_have_figures_alone(tmp_path: Path) -> None:
    write(path := tmp_path / "row-0.parquet", items=False)
    found = row_of(VARIANTS["clip"], {3: read_result(path)})
    assert found.metrics["order:a/order"][3] == 1.0
    assert found.items == {}


def test_a_run_is_missing_without_a_result_of_its_settings(tmp_path: Path) -> None:
    write(path := tmp_path / "row-0.parquet")
    assert has_result(path, FACTS["identity"])  # type: ignore[arg-type]
    assert not has_result(path, {"seed": 1, "at": (3,)})
    assert not has_result(tmp_path / "other-0.parquet", {})
    path.write_bytes(path.read_bytes()[:-20])
    assert not has_result(path, FACTS["identity"])  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"row-0\.parquet cannot be read"):
        read_result(path)
