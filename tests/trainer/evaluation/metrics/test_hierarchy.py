"""Hierarchical metrics on a tree of four classes, and the measured facts of ImageNet's tree."""

from collections import Counter
from pathlib import Path
from typing import Literal

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.parity.report import read
from trainer.evaluation.catalog import set_infos
from trainer.evaluation.metrics.hierarchy import (
    Tree,
    expected_at_random,
    hierarchical_metrics,
    read_tree,
)

CAT, DOG, SAW, AXE = range(4)
Rule = Literal["released", "paper"]


def tree_of(classes: str, **parents: str) -> Tree:
    """A tree from the names of its classes, and the parent of each node."""
    return Tree(parents, tuple(classes.split()), {})


def thing_tree() -> Tree:
    parents = {"animal": "thing", "tool": "thing", "cat": "animal", "dog": "animal", "saw": "tool", "axe": "tool"}
    return tree_of("cat dog saw axe", **parents)


@pytest.mark.parametrize(
    ("true", "predicted", "rule", "expected"),
    [
        (CAT, DOG, "released", {"TIE": 2, "LCA": 1, "LCA_max": 1, "J": 1, "P_H": 1, "R_H": 1}),
        (CAT, SAW, "released", {"TIE": 4, "LCA": 2, "LCA_max": 2, "J": 1 / 3, "P_H": 1 / 2, "R_H": 1 / 2}),
        (CAT, CAT, "released", {"TIE": 0, "LCA": 1, "LCA_max": 1, "J": 1, "P_H": 1, "R_H": 1}),
        (CAT, DOG, "paper", {"TIE": 2, "LCA": 1, "LCA_max": 1, "J": 2 / 4, "P_H": 2 / 3, "R_H": 2 / 3}),
        (CAT, SAW, "paper", {"TIE": 4, "LCA": 2, "LCA_max": 2, "J": 1 / 5, "P_H": 1 / 3, "R_H": 1 / 3}),
        (CAT, CAT, "paper", {"TIE": 0, "LCA": 0, "LCA_max": 0, "J": 1, "P_H": 1, "R_H": 1}),
    ],
)
def test_released_rule_excludes_the_class_from_its_ancestors_and_the_papers_includes_it(
    true: int, predicted: int, rule: Rule, expected: dict[str, float]
) -> None:
    found = hierarchical_metrics(thing_tree().tables(rule), torch.tensor([predicted]), torch.tensor([true]))
    assert found == pytest.approx(expected)


def test_leaves_that_are_numbers_are_in_the_order_of_their_folders(tmp_path: Path) -> None:
    (tmp_path / "tree.txt").write_text("top - top\n12 top dozen\n3 top few\n20 top score\n")
    assert read_tree(tmp_path / "tree.txt").classes == ("3", "12", "20")


def test_distances_differ_by_direction_if_the_classes_lie_at_different_depths() -> None:
    tree = tree_of("a c d", a="r", b="r", c="b", d="b")
    shallow_predicted = hierarchical_metrics(tree.tables("paper"), torch.tensor([0]), torch.tensor([1]))
    deep_predicted = hierarchical_metrics(tree.tables("paper"), torch.tensor([1]), torch.tensor([0]))
    assert (shallow_predicted["LCA"], deep_predicted["LCA"]) == (1, 2)
    assert shallow_predicted["LCA_max"] == deep_predicted["LCA_max"] == 2
    assert (shallow_predicted["P_H"], shallow_predicted["R_H"]) == pytest.approx((1 / 2, 1 / 3))


def test_imagenet_tree_has_the_measured_shape() -> None:
    tree = read_tree()
    children = Counter(tree.parents.values())
    depths = Counter((tree.ancestors.sum(1) - 1).tolist())
    assert (len(tree.nodes), len(tree.parents), len(tree.classes), len(children)) == (1372, 1371, 1000, 372)
    assert [node for node in tree.nodes if node not in tree.parents] == ["n00001930"]
    assert tree.names["n00001930"] == "physical_entity"
    assert min(children.values()) == 2
    measured = {3: 12, 4: 15, 5: 53, 6: 91, 7: 163, 8: 183, 9: 176, 10: 106, 11: 78, 12: 36, 13: 52, 14: 33, 15: 2}
    assert depths == measured
    class_siblings = Counter(tree.parents[name] for name in tree.classes)
    counts = [class_siblings[tree.parents[name]] - 1 for name in tree.classes]
    assert sum(n > 0 for n in counts) == 956
    assert sum(counts) / 1000 == pytest.approx(3.47, abs=0.005)


def test_classes_of_the_imagenet_tree_are_in_the_order_of_their_indices() -> None:
    assert read_tree().classes == set_infos()["imagenet"].wnids


def test_random_predictions_have_the_measured_metrics() -> None:
    tables = read_tree().tables("released")
    found = expected_at_random(tables, torch.full((1000,), 50))
    measured = {"TIE": 11.429, "LCA": 5.716, "LCA_max": 7.038, "J": 0.3123, "P_H": 0.4675, "R_H": 0.4675}
    assert found == pytest.approx(measured, abs=5e-4)
    torch.manual_seed(0)
    target = torch.arange(1000).repeat_interleave(50)
    drawn = hierarchical_metrics(tables, torch.randint(1000, (50_000,)), target)
    assert drawn == pytest.approx(found, rel=0.01)


def test_perfect_predictions_have_an_lca_of_one_by_the_released_rule_and_zero_by_the_paper() -> None:
    tree, target = read_tree(), torch.arange(1000)
    best = {"TIE": 0, "J": 1, "P_H": 1, "R_H": 1}
    assert hierarchical_metrics(tree.tables("released"), target, target) == best | {"LCA": 1, "LCA_max": 1}
    assert hierarchical_metrics(tree.tables("paper"), target, target) == best | {"LCA": 0, "LCA_max": 0}


def test_tie_is_the_sum_of_both_distances_to_the_common_ancestor() -> None:
    tables = read_tree().tables("paper")
    assert torch.equal(tables["TIE"], tables["LCA"] + tables["LCA"].T)


def test_edges_agree_with_a_search_in_the_graph() -> None:
    tree = read_tree()
    neighbors: dict[str, set[str]] = {node: set() for node in tree.nodes}
    for child, parent in tree.parents.items():
        neighbors[child].add(parent)
        neighbors[parent].add(child)
    start = tree.classes[123]
    distance, front = {start: 0}, [start]
    while front:
        front = [
            n for node in front for n in neighbors[node] if distance.setdefault(n, distance[node] + 1) > distance[node]
        ]
        front = list(dict.fromkeys(front))
    assert tree.edges()[123].tolist() == [distance[name] for name in tree.classes]


def test_metrics_agree_with_the_released_code() -> None:
    table, found = read("metrics")
    meta = found["hier"]
    tree = Tree({child: parent for parent, child in meta["edges"]}, tuple(meta["leaves"]), {})
    names = {"tie": "TIE", "lca": "LCA", "jaccard": "J", "precision": "P_H", "recall": "R_H"}
    tables = tree.tables("released")
    predicted, true = (torch.from_numpy(table[f"hier/{name}"]) for name in ("pred", "true"))
    means = hierarchical_metrics(tables, predicted, true)
    assert {theirs: means[ours] for theirs, ours in names.items()} == pytest.approx(meta["means"], abs=1e-12)
    pairs = torch.stack([tables[name] for name in names.values()], -1)
    torch.testing.assert_close(pairs, torch.from_numpy(table["hier/pairwise"]), rtol=0, atol=1e-12)
    assert [sorted(set(tree.path(leaf)) - {leaf}) for leaf in tree.classes] == [*map(sorted, meta["ancestors"])]


def test_malformed_trees_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "tree.txt"
    path.write_text("a - thing\nb a\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"tree.txt, line 2: 'b a' is not"):
        read_tree(path)
    for text, missing in (("", "the root"), ("cat animal cat\n", "animal")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=f"tree.txt has no line for {missing}"):
            read_tree(path)
    with pytest.raises(UserError, match="several roots: a, b"):
        tree_of("c d", c="a", d="b").tables("paper")
    with pytest.raises(UserError, match="cycle"):
        tree_of("a b", a="b", b="a").edges()


def test_a_tree_that_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "tree.txt").write_bytes(b"a - \xff\n")
    with pytest.raises(UserError, match=r"tree\.txt cannot be read: .*utf-8"):
        read_tree(tmp_path / "tree.txt")
