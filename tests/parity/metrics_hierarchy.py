"""Hierarchical metrics against the numbers of the released code, the keys `hier/*` of metrics.npz."""

import json
from typing import Any

import numpy as np
import torch

from trainer.evaluation.metrics.hierarchy import Tree, hierarchical_metrics

COLUMNS = {"tie": "TIE", "lca": "LCA", "jaccard": "J", "precision": "P_H", "recall": "R_H"}
"""Name in the file -> name of the metric, in the order of the last axis of hier/pairwise."""
TOLERANCE = 1e-12


def check(npz: Any) -> list[tuple[str, float, float]]:
    """Return name, largest absolute error and tolerance of each comparison with the open file `npz`."""
    meta = json.loads(str(npz["meta_json"]))["hier"]
    tree = Tree({child: parent for parent, child in meta["edges"]}, tuple(meta["leaves"]), {})
    tables = tree.tables("released")
    predicted, true = (torch.from_numpy(npz[f"hier/{name}"]) for name in ("pred", "true"))
    means = hierarchical_metrics(tables, predicted, true)
    found = [(f"hier/{name}", abs(means[ours] - meta["means"][name]), TOLERANCE) for name, ours in COLUMNS.items()]
    pairs = np.stack([tables[name].numpy() for name in COLUMNS.values()], -1)
    found.append(("hier/pairwise", float(np.abs(pairs - npz["hier/pairwise"]).max()), TOLERANCE))
    proper = [sorted(set(tree.path(leaf)) - {leaf}) for leaf in tree.classes]
    same = proper == [sorted(nodes) for nodes in meta["ancestors"]]
    return [*found, ("hier/ancestors", 0.0 if same else 1.0, 0.0)]
