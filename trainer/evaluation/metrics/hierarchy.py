"""Hierarchical metrics of classification: how far the predicted class lies from the true class in a tree.

HyCoCLIP, appendix C; Kosmopoulos et al. 2015. With A(y) the nodes on the path from the root to class y, p the predicted
and t the true class, and I the intersection of A(p) and A(t):

    TIE   number of edges between p and t
    LCA   number of edges from p to the lowest common ancestor
    J     |I| / |union of A(p) and A(t)|
    P_H   |I| / |A(p)|
    R_H   |I| / |A(t)|

The papers and the released code differ:

- "paper": A(y) contains y, and a correct prediction has an LCA of 0. `LCA_max` is PHyCLIP's LCA, the larger one of the
  distances from p and from t.
- "released": A(y) excludes y, so that classes with the same parent have J = P_H = R_H = 1, and the LCA is
  |A(p)| - |I| + 1, which is 1 for a correct prediction. `LCA_max` has the same floor.

All metrics of all pairs of classes are computed once as tables.

Shapes: c classes, m nodes, n predictions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from hypergrit_common.files import read_limited
from trainer.evaluation.sets.image_folders import in_order

Rule = Literal["released", "paper"]
MAX_TREE_BYTES: Final = 1 << 24
TREE_FILE: Final = Path(__file__).resolve().parents[1] / "data" / "imagenet_tree.txt"


@dataclass(frozen=True)
class Tree:
    """A tree over classes: the parent of each node but the root, the classes in index order, and names of nodes."""

    parents: Mapping[str, str]
    classes: tuple[str, ...]
    names: Mapping[str, str]

    @cached_property
    def nodes(self) -> list[str]:
        """All nodes, sorted."""
        return sorted(self.parents.keys() | set(self.parents.values()) | set(self.classes))

    def path(self, node: str) -> list[str]:
        """The node and its ancestors, up to the root. Raises UserError if the node is on a cycle."""
        path = [node]
        while (parent := self.parents.get(path[-1])) is not None:
            path.append(parent)
            if len(path) > len(self.parents) + 1:
                raise UserError(f"the hierarchy has a cycle through {node}; each node needs one path to the root")
        return path

    @cached_property
    def ancestors(self) -> Tensor:
        """Mask [c m], True for the nodes on the path from the root to a class, including the class.

        Raises UserError if the classes have different roots.
        """
        column = {node: i for i, node in enumerate(self.nodes)}
        paths = [self.path(name) for name in self.classes]
        if len(roots := sorted({path[-1] for path in paths})) > 1:
            raise UserError(f"the hierarchy has several roots: {', '.join(roots[:5])}; it needs one")
        mask = torch.zeros(len(self.classes), len(self.nodes), dtype=torch.bool)
        for row, path in enumerate(paths):
            mask[row, [column[node] for node in path]] = True
        return mask

    def tables(self, rule: Rule) -> dict[str, Tensor]:
        """Tables [c c] in float64 of all metrics, with the predicted class as row and the true class as column."""
        paths = self.ancestors.double()
        if rule == "released":
            own = torch.tensor([self.nodes.index(name) for name in self.classes])
            paths = paths.scatter(1, own[:, None], 0.0)
        sizes, common = paths.sum(1), paths @ paths.T
        predicted, true = sizes[:, None], sizes[None, :]
        floor = 1 if rule == "released" else 0
        return {
            "TIE": self.edges(),
            "LCA": predicted - common + floor,
            "LCA_max": torch.maximum(predicted, true) - common + floor,
            "J": common / (predicted + true - common),
            "P_H": (common / predicted),
            "R_H": (common / true),
        }

    def edges(self) -> Tensor:
        """Number of edges [c c] in float64 between each two classes."""
        paths = self.ancestors.double()
        sizes = paths.sum(1)
        return sizes[:, None] + sizes[None, :] - 2 * paths @ paths.T


def read_tree(path: Path = TREE_FILE) -> Tree:
    """Read a tree from lines `child parent name`; the root has the parent "-". The leaves are the classes, as `in_order`.

    Raises UserError for a malformed line, a node with two parents, and a node without a line.
    """
    parents: dict[str, str] = {}
    names: dict[str, str] = {}
    try:
        lines = read_limited(path, MAX_TREE_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.startswith("#") or not line.strip():
            continue
        fields = line.split()
        if len(fields) != 3 or fields[0] in names:
            raise UserError(f"{path}, line {number}: {line!r} is not `child parent name` with a new child; correct it")
        child, parent, names[child] = fields[0], fields[1], fields[2]
        if parent != "-":
            parents[child] = parent
    if not names or (unknown := {*parents.values()} - names.keys()):
        raise UserError(
            f"{path} has no line for {min(unknown) if names else 'the root'}, whose parent is - if it is the root"
        )
    return Tree(parents, tuple(in_order(names.keys() - set(parents.values()))), names)


def hierarchical_metrics(tables: Mapping[str, Tensor], predicted: Tensor, target: Tensor) -> dict[str, float]:
    """Mean of each metric over predicted and true class indices [n]."""
    return {name: table[predicted, target].mean().item() for name, table in tables.items()}


def expected_at_random(tables: Mapping[str, Tensor], counts: Tensor) -> dict[str, float]:
    """Expected metrics of uniformly random predictions, from the number of examples [c] of each true class."""
    weights = counts.double() / counts.sum()
    return {name: (table.mean(0) @ weights).item() for name, table in tables.items()}
