"""Taxonomies: classification and order by level, on seen and on unseen classes.

Shards with `levels` (docs/inputs.md) in two folders: `held_out/` has classes of the training, `unseen/` others. The labels
of both are the candidates of both, so that an unseen class competes with seen ones (the protocol of arXiv 2508.16744).

Shapes: n images, c distinct labels of a level, d embedding width.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from trainer.analyses.shard_points import HELD_OUT, ShardContent, read_shards
from trainer.evaluation.embed import device_of
from trainer.evaluation.metrics.entailment import TIE
from trainer.evaluation.metrics.items import Items, mean_items
from trainer.evaluation.metrics.ranking import macro_accuracy, predict
from trainer.evaluation.metrics.spaces import root_distances
from trainer.evaluation.sets.annotations import checksums
from trainer.evaluation.task import Embedder, MissingFilesError, TaskOptions, TaskResult
from trainer.evaluation.tasks.examples import EmbeddedImages, distinct, embed_sources

PARTS: Final = {"seen": HELD_OUT, "unseen": "unseen"}
"""Names of the parts of the metrics -> folders of their shards below the data folder."""
Chain = tuple[str | None, ...]


def level_names(chains: Sequence[Chain]) -> dict[int, list[str]]:
    """The distinct labels of each level, sorted."""
    depths = range(max(map(len, chains), default=0))
    return {d: sorted({name for chain in chains for name in chain[d : d + 1] if name}) for d in depths}


def edges_of(chains: Sequence[Chain]) -> list[tuple[tuple[int, str], tuple[int, str]]]:
    """The distinct pairs (general, specific) of neighbours in the chains, each a level and a label."""
    named = ([(depth, name) for depth, name in enumerate(chain) if name] for chain in chains)
    return list(dict.fromkeys(edge for chain in named for edge in pairwise(chain)))


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
        metrics[f"level_{depth}/accuracy"] = macro_accuracy(found[rows], target, len(names[depth]))
        chance[f"level_{depth}/accuracy"] = 1 / len(names[depth])
        items[f"level_{depth}/accuracy_micro"] = mean_items(found[rows] == target, rows)
    items["path"] = mean_items(is_right)
    return metrics | {name: values.metric() for name, values in items.items()}, chance, items


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate both folders. Raises MissingFilesError without shards with levels in `held_out/`."""
    parts: dict[str, tuple[ShardContent, EmbeddedImages, list[Chain]]] = {}
    for part, folder in PARTS.items():
        if part == "seen" or (root / folder).is_dir():
            content = read_shards(root, embedder.model.config.image.size_px, options.max_examples, folder)
            rows = [i for i, levels in enumerate(content.levels) if any(levels)]
            if not rows:
                raise MissingFilesError(f"{root / folder} has no samples with levels; see read.level_columns")
            images = embed_sources(embedder, [content.images[i] for i in rows], "squeeze")
            parts[part] = content, images, [content.levels[rows[i]] for i in images.usable.tolist()]
    model = embedder.model
    everything = [chain for *_, chains in parts.values() for chain in chains]
    names = level_names(everything)
    texts, _ = distinct([name for level in names.values() for name in level])
    with torch.no_grad():
        features = embedder.texts(texts).to(device_of(model))
        points = model.lift_text(features)
    place = {text: i for i, text in enumerate(texts)}
    metrics, chance, items = dict[str, float](), dict[str, float](), dict[str, Items]()
    for part, (_, images, chains) in parts.items():
        pictures = images.features[images.rows[images.usable]]
        predicted = {
            depth: predict(model, pictures, points[..., [place[name] for name in level], :], options.ranking)
            for depth, level in names.items()
        }
        for into, found in zip((metrics, chance, items), level_metrics(predicted, chains, names), strict=True):
            into |= {f"{part}/{name}": value for name, value in found.items()}  # type: ignore[operator]
    edges = edges_of(everything)
    general, specific = (torch.tensor([place[edge[side][1]] for edge in edges]) for side in (0, 1))
    radii = root_distances(model, {"text": points})["text"]
    items["order"] = mean_items(radii[specific] - radii[general] > TIE)
    metrics["order"], chance["order"] = items["order"].metric(), 0.5
    return TaskResult(
        metrics=metrics,
        chance=chance,
        rules={
            "score": options.ranking,
            "image": "squeezed to a square",
            "candidates": f"the labels of a level in {' and '.join(PARTS[part] for part in parts)}",
            "order": "share of the edges of the taxonomy whose general label is nearer the root",
        },
        n_used=len(everything),
        skipped={
            why: n for content, images, _ in parts.values() for why, n in (content.skipped | images.skipped()).items()
        },
        checksums=checksums(root, *(root / PARTS[part] for part in parts)),
        details={"labels": {f"level_{depth}": len(level) for depth, level in names.items()}},
        items=items,
    )
