"""Distances of texts against those of trees, products of two trees and a Boolean lattice, without images.

PHyCLIP (propositions 1 and 2, theorem 2) predicts that one hyperbolic space holds a tree, but neither a product of trees
nor a lattice, and that a product of factors holds all three; it measures none of them. Texts and measures are our
choice: distortion of Sala et al. 2018, relative delta of Khrulkov et al. 2020.

Shapes: n texts, [n n] distances.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from trainer.analyses.words import PROMPT, read_words
from trainer.evaluation.metrics.distances import agreement, gromov_delta, hamming, pairwise_distances
from trainer.evaluation.metrics.hierarchy import Tree, read_tree, tree_of_edges
from trainer.evaluation.sets.annotations import checksums
from trainer.evaluation.sets.base import FOLDER, TREE, own_sets
from trainer.evaluation.task import Embedder, TaskOptions, TaskResult
from trainer.evaluation.tasks.classification import evenly
from trainer.evaluation.tasks.examples import Problems, lift_texts

OBJECTS: Final = ("dog", "car", "tree", "chair", "apple", "book")
"""The objects of the lattice, one of each family, and so 64 sets."""
MAX_POINTS: Final = 100
"""Points of Gromov's delta, at equal distances in the order of the texts."""


class Structure(NamedTuple):
    """Texts [n] and their reference distances [n n]."""

    texts: Sequence[str]
    reference: Tensor


def tree_structure(tree: Tree) -> Structure:
    """All nodes of a tree, and the numbers of edges between them."""
    nodes = Tree(tree.parents, tuple(tree.nodes), tree.names)
    return Structure([PROMPT.format(tree.names[node].replace("_", " ")) for node in nodes.classes], nodes.edges())


def family_tree(words: Iterable[str], edges: Sequence[tuple[str, str]]) -> Tree:
    """The largest tree of a family of words with edges (word, hypernym)."""
    forest = tree_of_edges([(parent, word) for word, parent in edges], tuple(words))
    roots = {node: forest.path(node)[-1] for node in forest.nodes}
    root = Counter(roots.values()).most_common(1)[0][0]
    kept = [(parent, word) for word, parent in edges if roots[word] == root]
    return tree_of_edges(kept, ())


def product_structure(first: Tree, second: Tree) -> Structure:
    """Captions of a word of each tree; distances are the sums of those in the trees (PHyCLIP, definition 1)."""
    sides = [tree_structure(tree) for tree in (first, second)]
    nouns = [[text.removeprefix(PROMPT.format("")) for text in side.texts] for side in sides]
    texts = [PROMPT.format(f"{one} and a {other}") for one, other in product(*nouns)]
    sizes = [len(side.texts) for side in sides]
    rows, columns = torch.arange(sizes[0]).repeat_interleave(sizes[1]), torch.arange(sizes[1]).repeat(sizes[0])
    return Structure(texts, sides[0].reference[rows][:, rows] + sides[1].reference[columns][:, columns])


def lattice_structure(objects: Sequence[str] = OBJECTS) -> Structure:
    """Captions of all subsets of the objects, and their Hamming distances; the empty set is "a photo"."""
    sets = torch.tensor(list(product((0, 1), repeat=len(objects))))
    members = [[name for name, shown in zip(objects, row, strict=True) if shown] for row in sets.tolist()]
    return Structure([PROMPT.format(" and a ".join(names)) if names else "a photo" for names in members], hamming(sets))


def structures(root: Path, problems: Problems) -> dict[str, Structure]:
    """The trees of mammals, of vehicles and of ImageNet, the product of the first two, the lattice, and own trees."""
    trees = {name.split()[0]: family_tree(family.words, family.edges) for name, family in read_words()[1].items()}
    first, second = trees.values()
    found = {name: tree_structure(tree) for name, tree in trees.items()}
    found |= {"product": product_structure(first, second), "lattice": lattice_structure()}
    found["imagenet"] = tree_structure(read_tree())
    for name in own_sets(root):
        if (path := root / FOLDER / name / TREE).is_file():
            with problems.of(name):
                found[name] = tree_structure(read_tree(path))
    return found


def sampled_delta(distances: Tensor) -> float:
    """Gromov's relative delta of at most `MAX_POINTS` of the points [n n]."""
    rows = torch.tensor(evenly(len(distances), MAX_POINTS))
    return gromov_delta(distances[rows][:, rows])


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Distortion, correlations and Gromov's delta of each structure, whose name begins those of its metrics."""
    problems, metrics, deltas = Problems(), dict[str, float](), dict[str, float]()
    found, model = structures(root, problems), embedder.model
    for name, structure in found.items():
        distances = pairwise_distances(model, lift_texts(embedder, structure.texts)).cpu()
        values = agreement(distances, structure.reference) | {"delta": sampled_delta(distances)}
        metrics |= {f"{name}/{key}": value for key, value in values.items()}
        deltas[name] = sampled_delta(structure.reference)
    own = [root / FOLDER / name / TREE for name in own_sets(root) if name in found]
    return TaskResult(
        metrics=metrics,
        chance={f"{name}/{key}": 0.0 for name in found for key in ("pearson", "spearman")},
        rules={
            "prompt": PROMPT,
            "distance": "geodesic in the model's space; angle for CLIP",
            "distortion": "mean of |s d / d_tree - 1| at the best scale s; a collapse has 1",
            "delta": f"Gromov's delta over half the diameter, of at most {MAX_POINTS} points; a tree has 0",
            "lattice": f"captions of all subsets of {', '.join(OBJECTS)}",
        },
        n_used=sum(len(structure.texts) for structure in found.values()),
        skipped=problems.skipped,
        checksums=checksums(root, *own),
        details={**problems.details(), "delta_of_the_reference": deltas},
    )
