"""Hierarchical metrics of ImageNet classification on the tree of WordNet (HyCoCLIP, table 2 and appendix C).

Shapes: n images, c classes, p prompts, d embedding width.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES
from torch import Tensor

from trainer.evaluation.embed import device_of
from trainer.evaluation.hierarchy import Tree, expected_at_random, hierarchical_metrics, read_tree
from trainer.evaluation.tasks.annotations import embed_sources, require
from trainer.evaluation.tasks.base import (
    Embedder,
    Figure,
    Task,
    TaskOptions,
    TaskResult,
)
from trainer.evaluation.tasks.class_folders import list_class_folders
from trainer.evaluation.zero_shot import predict
from trainer.models.config import Ranking

FOLDER: Final = "imagenet/val"
PROMPTS: Final = (
    "i took a picture : itap of a {}.",
    "pics : a bad photo of the {}.",
    "pics : a origami {}.",
    "pics : a photo of the large {}.",
    "pics : a {} in a video game.",
    "pics : art of the {}.",
    "pics : a photo of the small {}.",
)
"""Prompts of MERU's appendix, which HyCoCLIP and PHyCLIP use too."""
BLOCK: Final = 1024
N_CONFUSIONS: Final = 20


def class_points(embedder: Embedder, names: Sequence[str], prompts: Sequence[str]) -> Tensor:
    """One lifted point [*k c d] per class, from the features of its prompts."""
    texts = [prompt.replace("{}", name) for name in names for prompt in prompts]
    features = embedder.texts(texts).unflatten(0, (len(names), len(prompts)))
    with torch.inference_mode():
        return embedder.model.lift_prompts(features.to(device_of(embedder.model)))


def predictions(embedder: Embedder, features: Tensor, classes: Tensor, ranking: Ranking) -> Tensor:
    """Index [n] of the best class of each image, from features [n d] before the lift."""
    device = device_of(embedder.model)
    with torch.inference_mode():
        parts = [predict(embedder.model, part.to(device), classes, ranking) for part in features.split(BLOCK)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Classify the images and compare predicted with true classes in the tree.

    TIE, LCA, LCA_max, J, P_H and R_H follow the rule of the options; RULE/NAME are the metrics of the other rule.
    """
    require(root, FOLDER)
    tree = read_tree()
    sources, targets = list_class_folders(root / FOLDER, tree.classes, options.max_examples)
    images = embed_sources(embedder, sources)
    classes = class_points(embedder, IMAGENET_CLASSNAMES, PROMPTS)
    target = torch.tensor(targets)[images.usable]
    predicted = predictions(embedder, images.features[images.rows[images.usable]], classes, options.ranking)
    metrics: dict[str, float] = {}
    chance: dict[str, float] = {}
    counts = torch.bincount(target, minlength=len(tree.classes))
    for rule in ("released", "paper"):
        tables = tree.tables(rule)
        prefix = "" if rule == options.rule else f"{rule}/"
        metrics |= {f"{prefix}{k}": v for k, v in hierarchical_metrics(tables, predicted, target).items()}
        chance |= {f"{prefix}{k}": v for k, v in expected_at_random(tables, counts).items()}
    metrics = {name: metrics[name] for name in sorted(metrics, key=lambda name: "/" in name)}
    edges = tree.edges()[predicted, target]
    return TaskResult(
        metrics=metrics | {"accuracy_micro": (predicted == target).double().mean().item()},
        chance=chance | {"accuracy_micro": 1 / len(tree.classes)},
        rules={
            "score": options.ranking,
            "image": "center crop",
            "prompts": f"{len(PROMPTS)} prompts of MERU, averaged before the lift",
            "rule": f"{options.rule}: "
            + ("ancestors without the class, LCA + 1" if options.rule == "released" else "ancestors with the class"),
            "tree": "1,371 edges, derived from WordNet 3.0",
        },
        n_used=len(target),
        skipped=images.skipped(),
        details={
            "edges_between_predicted_and_true": {str(int(e)): n for e, n in sorted(Counter(edges.tolist()).items())},
            "confusions": confusions(tree, predicted, target),
        },
        figures=[Figure(name="edges", title="Edges between predicted and true class", draw=lambda p: draw(p, edges))],
    )


def confusions(tree: Tree, predicted: Tensor, target: Tensor) -> list[dict[str, Any]]:
    """List the most frequent confusions: names of the true and predicted class and of their lowest common ancestor."""
    wrong = predicted != target
    pairs = Counter(zip(target[wrong].tolist(), predicted[wrong].tolist(), strict=True))
    rows = []
    for (true, other), n in pairs.most_common(N_CONFUSIONS):
        path, other_path = tree.path(tree.classes[true]), set(tree.path(tree.classes[other]))
        common = next(node for node in path if node in other_path)
        rows.append(
            {
                "true": IMAGENET_CLASSNAMES[true],
                "predicted": IMAGENET_CLASSNAMES[other],
                "common": tree.names[common].replace("_", " "),
                "n": n,
            }
        )
    return rows


def draw(path: Path, edges: Tensor) -> None:
    """Draw the distribution of the number of edges between predicted and true class [n]."""
    from matplotlib.figure import Figure as Canvas

    counts = torch.bincount(edges.long()).double() / max(len(edges), 1)
    canvas = Canvas(figsize=(6, 3), layout="constrained")
    axes = canvas.add_subplot()
    axes.bar(range(len(counts)), (100 * counts).tolist())
    axes.set_xlabel("edges between predicted and true class")
    axes.set_ylabel("images (%)")
    canvas.savefig(path, dpi=150)


TASK = Task(
    name="hierarchical",
    title="Hierarchical classification (ImageNet, WordNet)",
    files=("imagenet/val/WNID/*.JPEG",),
    size="50,000 images, 6.3 GB",
    source="https://www.image-net.org",
    license="non-commercial research (images); WordNet 3.0 license (tree)",
    evaluate=evaluate,
)
