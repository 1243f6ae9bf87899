"""Chains of captions of one's own, from general to specific: chains/NAME.csv below the data folder.

    captions,image
    animal => a dog => a red dog => A red dog sits on a sofa.,00001.jpg

All chains of a file have the same number of captions. Without images, the order of the captions alone is measured.
Shapes: n chains, t distinct captions, l levels.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F

from trainer.evaluation.metrics.chains import (
    distance_order,
    distances_to_root,
    evaluate_chains,
    himo,
    kendall_tau,
)
from trainer.evaluation.metrics.items import mean_items
from trainer.evaluation.metrics.spaces import center_of, quantity, root_rule
from trainer.evaluation.sets.annotations import checksums
from trainer.evaluation.task import Embedder, ImageSource, TaskOptions, TaskResult
from trainer.evaluation.tasks.examples import Problems, distinct, embed_sources, limited, merge
from trainer.evaluation.tasks.hierarcaps import chain_rules, figure
from trainer.evaluation.tasks.hierarcaps_expanded import JOINER, read_chain, read_table

FOLDER: Final = "chains"
COLUMNS: Final = ("captions", "image")

Chain = tuple[tuple[str, ...], str]
"""The captions of a chain, and the file name of its image."""


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate each file, whose name begins those of its metrics. Malformed files are listed in the details.

    Raises MissingFilesError without files, and UserError if all are malformed.
    """
    problems, parts = Problems(), dict[str, TaskResult]()
    for path in sorted((root / FOLDER).glob("*.csv")):
        with problems.of(path.stem):
            parts[path.stem] = evaluate_file(embedder, root, path, options, problems)
    problems.require(parts, f"expected {root / FOLDER}/NAME.csv with the columns {' and '.join(COLUMNS)}")
    return merge(parts, problems)


def read_chains(path: Path, problems: Problems) -> list[Chain]:
    """Read a file. Raises UserError if it is malformed; the first chain sets the number of captions."""
    levels = 0

    def read(row: Mapping[str, str | None], where: str) -> Chain:
        nonlocal levels
        levels = levels or max(2, (row["captions"] or "").count(JOINER.strip()) + 1)
        return read_chain(row["captions"], where, levels), (row["image"] or "").strip()

    return read_table(path, COLUMNS, problems, read)


def evaluate_file(embedder: Embedder, root: Path, path: Path, options: TaskOptions, problems: Problems) -> TaskResult:
    """Metrics of HierarCaps and HyCoCLIP, PEP and HiMo@K of chains with images; else tau of the captions alone.

    Raises MissingFilesError if no image can be read.
    """
    rows = limited(read_chains(path, problems), options.max_examples)
    problems.require(rows, f"{path} has no chains")
    if not any(image for _, image in rows):
        return evaluate_texts(embedder, root, path, rows, options)
    images = embed_sources(embedder, [ImageSource(path=path.with_suffix("") / image) for _, image in rows])
    used = images.usable
    texts, index = distinct([text for i in used.tolist() for text in rows[i][0]])
    chains = index.view(len(used), -1)
    model = embedder.model
    result = evaluate_chains(embedder, images.features[images.rows[used]], texts, chains, options)
    scores = result.scores.gather(1, chains)
    growing = {f"himo/{name}": mean_items(values) for name, values in himo(list(scores)).items()}
    distances = result.distances[chains]
    order = {"path/tau": mean_items(kendall_tau(distances))}
    return TaskResult(
        metrics=result.metrics | {name: values.metric() for name, values in growing.items()},
        chance=result.chance | {"himo/pearson": 0.0},
        rules=chain_rules(model, options) | {"levels": str(chains.shape[1])},
        n_used=len(used),
        skipped=images.skipped(),
        checksums=checksums(root, path),
        figures=[figure(path.stem, f"Distance to the root by level of the caption, {path.stem}", model, distances)],
        items=growing | order,
    )


def evaluate_texts(
    embedder: Embedder, root: Path, path: Path, rows: Sequence[Chain], options: TaskOptions
) -> TaskResult:
    """Order of the distances to the root along chains without images."""
    texts, index = distinct([text for captions, _ in rows for text in captions])
    chains, features, model = index.view(len(rows), -1), embedder.texts(texts), embedder.model
    center = center_of(model, [F.normalize(features, dim=-1)], options.root)
    values = distances_to_root(model, features, torch.zeros(features.shape[1]) if center is None else center)[chains]
    return TaskResult(
        metrics={f"path/{name}": value for name, value in distance_order(values).items()},
        chance={"path/tau": 0.0},
        rules={
            "root": root_rule(model, "the captions", options.root),
            "distance": quantity(model, in_metric=True),
            "images": "none",
        },
        n_used=len(rows),
        checksums=checksums(root, path),
        items={"path/tau": mean_items(kendall_tau(values))},
    )
