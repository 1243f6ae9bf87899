"""Taxonomies: classification and order by level, on seen and on unseen classes.

Shards with `levels` (docs/inputs.md) in two folders: `held_out/` has classes of the training, `unseen/` others. The labels
of both are the candidates of both, so that an unseen class competes with seen ones (the protocol of arXiv 2508.16744).

Shapes: n images, c distinct labels of a level, d embedding width.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from trainer.analyses.shard_points import HELD_OUT, read_shards
from trainer.evaluation.metrics.entailment import TIE
from trainer.evaluation.metrics.items import Items, mean_items
from trainer.evaluation.metrics.ranking import predict
from trainer.evaluation.metrics.spaces import over_factors, root_rule, space_of_points
from trainer.evaluation.sets.annotations import checksums
from trainer.evaluation.task import Embedder, MissingFilesError, TaskOptions, TaskResult
from trainer.evaluation.tasks.examples import distinct, lift_texts

PARTS: Final = {"seen": HELD_OUT, "unseen": "unseen"}
"""Names of the parts of the metrics -> folders of their shards below the data folder."""
Chain = tuple[str | None, ...]


def level_names(chains: Sequence[Chain]) -> dict[int, list[str]]:
    """The distinct labels of each level, sorted; without the levels at which no chain has one."""
    depths = range(max(map(len, chains), default=0))
    names = {d: sorted({name for chain in chains for name in chain[d : d + 1] if name}) for d in depths}
    return {d: found for d, found in names.items() if found}


def edges_of(chains: Sequence[Chain]) -> list[tuple[tuple[int, str], tuple[int, str]]]:
    """The distinct pairs (general, specific) of neighbours in the chains, each a level and a label."""
    named = ([(depth, name) for depth, name in enumerate(chain) if name] for chain in chains)
    return list(dict.fromkeys(edge for chain in named for edge in pairwise(chain)))


def mean_recall(predicted: Tensor, target: Tensor) -> float:
    """Mean recall of the labels in `target` [n], 1 / c at random among c candidates.

    Unlike `macro_accuracy`, it has no zeros for labels that are only predicted, as seen ones are for unseen images.
    """
    n_images, n_right = target.bincount(), target[predicted == target].bincount(minlength=int(target.max()) + 1)
    return (n_right / n_images)[n_images > 0].mean().item()


def level_metrics(
    predicted: dict[int, Tensor], chains: Sequence[Chain], names: dict[int, list[str]]
) -> tuple[dict[str, float], dict[str, float], dict[str, Items]]:
    """Accuracy, chance and items of each level, and `path`: the share of images that are right on all their levels.

    `predicted` holds the place [n] of the predicted label of each image among the names of its level.
    """
    metrics, chance, items = dict[str, float](), dict[str, float](), dict[str, Items]()
    is_right = torch.ones(len(chains), dtype=torch.bool)
    for depth, found in predicted.items():
        known = torch.tensor([depth < len(chain) and chain[depth] is not None for chain in chains])
        rows = known.nonzero()[:, 0]
        if not len(rows):
            continue
        target = torch.tensor([names[depth].index(str(chains[i][depth])) for i in rows.tolist()])
        is_right[rows] &= found[rows] == target
        metrics[f"level_{depth}/accuracy"] = mean_recall(found[rows], target)
        chance[f"level_{depth}/accuracy"] = 1 / len(names[depth])
        items[f"level_{depth}/accuracy_micro"] = mean_items(found[rows] == target, rows)
    items["path"] = mean_items(is_right)
    return metrics | {name: values.metric() for name, values in items.items()}, chance, items


class LevelPart(NamedTuple):
    """Features of the images [n d] of a folder, their chains, and the numbers of samples that are not used."""

    images: Tensor
    chains: list[Chain]
    skipped: Counter[str]


def embed_part(embedder: Embedder, root: Path, folder: str, limit: int) -> LevelPart:
    """Embed the images of the samples with levels. Raises MissingFilesError without one that can be read."""
    content = read_shards(root, embedder.model.config.image.size_px, limit, folder)
    rows = [row for row in content.rows if any(row.levels)]
    found = embedder.images([row.image for row in rows], "squeeze") if rows else None
    usable = [place for place in range(len(rows)) if found and place not in found.errors]
    if found is None or not usable:
        raise MissingFilesError(f"{root / folder} has no samples with levels; see read.levels")
    unused = Counter({"without levels": len(content.rows) - len(rows), "unreadable image": len(found.errors)})
    return LevelPart(found.features[usable], [rows[place].levels for place in usable], content.skipped + unused)


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate both folders. Raises MissingFilesError without shards with levels in `held_out/`."""
    parts: dict[str, LevelPart] = {}
    for name, folder in PARTS.items():
        if name == "seen" or (root / folder).is_dir():
            parts[name] = embed_part(embedder, root, folder, options.max_examples)
    model = embedder.model
    everything = [chain for part in parts.values() for chain in part.chains]
    names = level_names(everything)
    texts, _ = distinct([name for level in names.values() for name in level])
    points = lift_texts(embedder, texts)
    place = {text: i for i, text in enumerate(texts)}
    metrics, chance, items = dict[str, float](), dict[str, float](), dict[str, Items]()
    for name, part in parts.items():
        predicted = {
            depth: predict(model, part.images, points[..., [place[text] for text in level], :], options.ranking)
            for depth, level in names.items()
        }
        found, at_random, own = level_metrics(predicted, part.chains, names)
        metrics |= {f"{name}/{key}": value for key, value in found.items()}
        chance |= {f"{name}/{key}": value for key, value in at_random.items()}
        items |= {f"{name}/{key}": values for key, values in own.items()}
    edges = edges_of(everything)
    general, specific = (torch.tensor([place[edge[side][1]] for edge in edges]) for side in (0, 1))
    radii = over_factors(space_of_points(model, {"text": points}, options.root).radius(points)).cpu()
    items["order"] = mean_items(radii[specific] - radii[general] > TIE)
    metrics["order"], chance["order"] = items["order"].metric(), 0.5
    return TaskResult(
        metrics=metrics,
        chance=chance,
        rules={
            "score": options.ranking,
            "image": "squeezed to a square",
            "accuracy": "mean over the labels that the images have",
            "candidates": f"the labels of a level in {' and '.join(PARTS[part] for part in parts)}",
            "order": "share of the edges of the taxonomy whose general label is nearer the root",
            "root": root_rule(model, "the labels", options.root),
        },
        n_used=len(everything),
        skipped=dict(sum((part.skipped for part in parts.values()), Counter[str]())),
        checksums=checksums(root, *(root / PARTS[part] for part in parts)),
        details={"labels": {f"level_{depth}": len(level) for depth, level in names.items()}},
        items=items,
    )
