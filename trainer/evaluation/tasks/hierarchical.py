"""Hierarchical metrics of ImageNet classification on the tree of WordNet (HyCoCLIP, table 2 and appendix C).

Shapes: n images, c classes, p prompts, d embedding width.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from trainer.evaluation import plots
from trainer.evaluation.metrics.hierarchy import Tree, expected_at_random, hierarchical_metrics, read_tree
from trainer.evaluation.metrics.items import Items, mean_items
from trainer.evaluation.metrics.ranking import predict
from trainer.evaluation.sets.base import FOLDER, TREE, ZeroShotSet, own_sets, read_own_set
from trainer.evaluation.sets.registry import read_set
from trainer.evaluation.task import Embedder, Figure, ImageSource, TaskOptions, TaskResult
from trainer.evaluation.tasks.classification import class_points, evenly
from trainer.evaluation.tasks.examples import Problems, embed_sources, merge

N_CONFUSIONS: Final = 20


def check_classes(images: Sequence[ImageSource], targets: Sequence[int], n_classes: int, tree: Tree) -> None:
    """Raise UserError if a folder of images is not that of its class in the tree, or there are more of either."""
    if n_classes != len(tree.classes):
        raise UserError(
            f"{images[0].path.parents[1]} has {n_classes} classes, but the tree has {len(tree.classes)} leaves; "
            "give each leaf its folder, and no other folders"
        )
    for image, target in zip(images, targets, strict=True):
        if target >= len(tree.classes) or image.path.parent.name != tree.classes[target]:
            expected = tree.classes[target] if target < len(tree.classes) else f"one of {len(tree.classes)}"
            raise UserError(
                f"{image.path.parent} is not the class {expected}; name the folders after the leaves of the tree, for "
                "ImageNet the WordNet ids of the 1,000 classes"
            )


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate on ImageNet, and on the data sets of one's own that have a tree, whose names begin those of the metrics.

    Raises MissingFilesError if none is there.
    """
    own = [name for name in own_sets(root) if (root / FOLDER / name / TREE).is_file()]
    if not own:
        return evaluate_set(embedder, read_tree(), read_set(root, "imagenet"), options)
    parts: dict[str, TaskResult] = {}
    problems = Problems()
    with problems.of("imagenet"):
        parts[""] = evaluate_set(embedder, read_tree(), read_set(root, "imagenet"), options)
    for name in own:
        with problems.of(name):
            tree = read_tree(root / FOLDER / name / TREE)
            parts[name] = evaluate_set(embedder, tree, read_own_set(root, name), options)
    problems.require(parts, f"{root / FOLDER} has no usable data set")
    return merge(parts, problems)


def evaluate_set(embedder: Embedder, tree: Tree, data: ZeroShotSet, options: TaskOptions) -> TaskResult:
    """Classify the images and compare predicted with true classes in the tree.

    TIE, LCA, LCA_max, J, P_H and R_H follow the rule of the options; RULE/NAME are the metrics of the other rule.
    """
    check_classes(data.images, data.targets, len(data.names), tree)
    keep = evenly(len(data.images), options.max_examples)
    images = embed_sources(embedder, [data.images[i] for i in keep])
    target = torch.tensor([data.targets[i] for i in keep])[images.usable]
    classes = class_points(embedder, data.names, data.info.prompts)
    predicted = predict(embedder.model, images.features[images.rows[images.usable]], classes, options.ranking)
    metrics: dict[str, float] = {}
    chance: dict[str, float] = {}
    items: dict[str, Items] = {}
    counts = torch.bincount(target, minlength=len(tree.classes))
    for rule in ("released", "paper"):
        tables = tree.tables(rule)
        prefix = "" if rule == options.rule else f"{rule}/"
        metrics |= {f"{prefix}{k}": v for k, v in hierarchical_metrics(tables, predicted, target).items()}
        items |= {f"{prefix}{name}": mean_items(table[predicted, target]) for name, table in tables.items()}
        chance |= {f"{prefix}{k}": v for k, v in expected_at_random(tables, counts).items()}
    metrics = {name: metrics[name] for name in sorted(metrics, key=lambda name: "/" in name)}
    edges = tree.edges()[predicted, target]
    own = "" if data.info.key == "imagenet" else data.info.key
    return TaskResult(
        metrics=metrics | {"accuracy_micro": (predicted == target).double().mean().item()},
        chance=chance | {"accuracy_micro": 1 / len(tree.classes)},
        rules={
            **data.rules,
            "score": options.ranking,
            "image": "center crop",
            "rule": f"{options.rule}: "
            + ("ancestors without the class, LCA + 1" if options.rule == "released" else "ancestors with the class"),
            "tree": f"{len(tree.parents):,} edges, "
            + (f"{FOLDER}/{own}/{TREE}" if own else "derived from WordNet 3.0"),
        },
        n_used=len(target),
        skipped=images.skipped(),
        checksums=data.checksums,
        details={
            "edges_between_predicted_and_true": {str(int(e)): n for e, n in sorted(Counter(edges.tolist()).items())},
            "confusions": confusions(tree, data.names, predicted, target),
        },
        figures=[Figure(f"{own}_edges".lstrip("_"), "Edges between predicted and true class", draw, edges)],
        items=items,
    )


def confusions(tree: Tree, names: Sequence[str], predicted: Tensor, target: Tensor) -> list[dict[str, Any]]:
    """List the most frequent confusions: names of the true and predicted class and of their lowest common ancestor."""
    wrong = predicted != target
    pairs = Counter(zip(target[wrong].tolist(), predicted[wrong].tolist(), strict=True))
    rows = []
    for (true, other), n in pairs.most_common(N_CONFUSIONS):
        path, other_path = tree.path(tree.classes[true]), set(tree.path(tree.classes[other]))
        common = next(node for node in path if node in other_path)
        rows.append(
            {
                "true": names[true],
                "predicted": names[other],
                "common": tree.names[common].replace("_", " "),
                "n": n,
            }
        )
    return rows


def draw(edges: Tensor, path: Path) -> None:
    """Draw the distribution of the number of edges between predicted and true class [n]."""
    counts = torch.bincount(edges.long()).double() / max(len(edges), 1)
    with plots.axes(path, 6, 3) as ax:
        ax.bar(range(len(counts)), (100 * counts).tolist(), color=plots.COLORS[0])
        ax.set(xlabel="edges between predicted and true class", ylabel="images (percent)")
