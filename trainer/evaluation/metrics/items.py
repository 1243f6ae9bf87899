"""The numbers of single held-out items behind a metric, for intervals: OUTPUT/MODEL/TASK.npz beside TASK.json.

Items of one unit, such as the boxes of one image, are not independent: an interval resamples units, not items. Items
and units depend on the data alone, so the results of two models can be paired item by item.

Shapes: n items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from hypergrit_common.text import one_line
from trainer.evaluation.metrics.entailment import average_precision, roc_auc

Reduction = Literal["mean", "auc", "ap"]
"""From items to the metric. mean: of the values; auc, ap: area under the ROC curve and balanced average precision of
the values as scores of true against mismatched pairs."""
REDUCTIONS: Final[tuple[Reduction, ...]] = get_args(Reduction)


@dataclass(frozen=True, kw_only=True)
class Items:
    """Values [n] with the unit [n] that each belongs to. For auc and ap, `is_true` [n] marks the true pairs."""

    values: NDArray[np.float64]
    units: NDArray[np.int64]
    is_true: NDArray[np.bool_]
    reduction: Reduction = "mean"

    def metric(self) -> float:
        """The metric that the values reduce to."""
        if self.reduction == "mean":
            return float(self.values.mean())
        values, is_true = torch.from_numpy(self.values), torch.from_numpy(self.is_true)
        pairs = values[is_true], values[~is_true]
        return roc_auc(*pairs) if self.reduction == "auc" else average_precision(*pairs)


def mean_items(values: Tensor, units: Tensor | None = None) -> Items:
    """Items [n] whose mean is the metric; each is a unit by itself without `units` [n]."""
    numbers = values.detach().double().cpu().numpy()
    owners = np.arange(len(numbers)) if units is None else units.cpu().numpy().astype(np.int64)
    return Items(values=numbers, units=owners, is_true=np.ones(len(numbers), bool))


def balanced_items(parts: Sequence[Items]) -> Items:
    """Items whose mean is the mean over the parts' means, whatever the lengths of the parts."""
    n_items = sum(len(part.values) for part in parts)
    weighted = [part.values * (n_items / (len(parts) * len(part.values))) for part in parts]
    return Items(
        values=np.concatenate(weighted),
        units=np.concatenate([part.units for part in parts]),
        is_true=np.ones(n_items, bool),
    )


def pair_items(true: Tensor, mismatched: Tensor, units: tuple[Tensor, Tensor], reduction: Reduction) -> Items:
    """Items of scores of true [p] and mismatched pairs [m], with the units [p] and [m] of their general points."""
    is_true = torch.cat([torch.ones(len(true), dtype=torch.bool), torch.zeros(len(mismatched), dtype=torch.bool)])
    return Items(
        values=torch.cat([true, mismatched]).double().cpu().numpy(),
        units=torch.cat(units).cpu().numpy().astype(np.int64),
        is_true=is_true.numpy(),
        reduction=reduction,
    )


def write_items(items: Mapping[str, Items], path: Path) -> None:
    """Write the items of all metrics of a task to an .npz file, as arrays METRIC:FIELD."""
    arrays = {
        f"{metric}:{field.name}": np.asarray(getattr(found, field.name))
        for metric, found in items.items()
        for field in fields(Items)
    }
    with atomic_write(path) as draft, draft.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_items(path: Path) -> dict[str, Items]:
    """Read the items of a task by metric. Raises UserError for a file that is missing or damaged."""
    try:
        check_file(path)
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        metrics = dict.fromkeys(name.rpartition(":")[0] for name in found)
        return {metric: from_arrays({f.name: found[f"{metric}:{f.name}"] for f in fields(Items)}) for metric in metrics}
    except Exception as error:  # its type depends on the place of the damage: zip, zlib, NumPy
        raise UserError(f"{path} cannot be read: {one_line(error)}; delete the folder and evaluate again") from error


def from_arrays(arrays: Mapping[str, NDArray[np.generic]]) -> Items:
    """Items from the arrays of a file. Raises ValueError for an unknown reduction or unequal lengths."""
    reduction = next((name for name in REDUCTIONS if name == str(arrays["reduction"])), None)
    values, units, is_true = (arrays[name] for name in ("values", "units", "is_true"))
    if reduction is None or not values.shape == units.shape == is_true.shape or values.ndim != 1:
        raise ValueError("an array has a wrong shape or reduction")
    return Items(
        values=values.astype(np.float64),
        units=units.astype(np.int64),
        is_true=is_true.astype(bool),
        reduction=reduction,
    )
