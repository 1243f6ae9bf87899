"""Items: numbers of single held-out items, which reduce to the metrics."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hypergrit_common.errors import UserError
from trainer.evaluation.metrics.items import balanced_items, mean_items, pair_items, read_items, write_items


def test_items_are_read_as_they_were_written(tmp_path: Path) -> None:
    true, mismatched = torch.tensor([3.0, 1.0]), torch.tensor([2.0, 0.0, 0.0])
    units = torch.tensor([4, 4]), torch.tensor([4, 5, 5])
    items = {
        "set/recall@5": mean_items(torch.tensor([True, False, True]), torch.tensor([7, 7, 9])),
        "auc": pair_items(true, mismatched, units, "auc"),
        "ap": pair_items(true, mismatched, units, "ap"),
    }
    write_items(items, tmp_path / "task.npz")
    found = read_items(tmp_path / "task.npz")
    assert list(found) == list(items)
    assert found["set/recall@5"].units.tolist() == [7, 7, 9]
    assert found["auc"].is_true.tolist() == [True, True, False, False, False]
    assert found["set/recall@5"].metric() == pytest.approx(2 / 3)
    assert found["auc"].metric() == pytest.approx(5 / 6)
    assert found["ap"].metric() == items["ap"].metric()


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "task.npz"
    with pytest.raises(UserError, match=r"task\.npz cannot be read"):
        read_items(path)
    path.write_bytes(b"PK")
    with pytest.raises(UserError, match=r"task\.npz cannot be read"):
        read_items(path)
    np.savez(path, **{"accuracy:values": np.zeros(3)})
    with pytest.raises(UserError, match=r"task\.npz cannot be read"):
        read_items(path)


def test_any_damage_of_a_file_is_the_same_error(tmp_path: Path) -> None:
    path, rng = tmp_path / "task.npz", np.random.default_rng(0)
    write_items({"accuracy": mean_items(torch.arange(60.0))}, path)
    whole = path.read_bytes()
    cut = [whole[: len(whole) * i // 20] for i in range(20)]
    flipped = [bytearray(whole) for _ in range(150)]
    for content in flipped:
        content[rng.integers(len(whole))] ^= 1 << rng.integers(8)
    for content in (*cut, *flipped, b"PK\x03\x04" + bytes(90)):
        path.write_bytes(content)
        with suppress(UserError):
            read_items(path)
    values: dict[str, Any] = {
        "values": np.zeros(2, "i4,i4"),
        "units": np.zeros(2),
        "is_true": np.ones(2),
        "reduction": "mean",
    }
    np.savez(path, **{f"a:{name}": value for name, value in values.items()})
    with pytest.raises(UserError, match=r"task\.npz cannot be read"):
        read_items(path)


def test_balanced_items_have_the_mean_of_the_means() -> None:
    parts = [mean_items(torch.tensor([1.0, 0.0, 0.0, 0.0])), mean_items(torch.tensor([1.0]))]
    assert balanced_items(parts).metric() == pytest.approx((0.25 + 1) / 2)
