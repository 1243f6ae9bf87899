"""HierarCaps (Alper and Averbuch-Elor 2024): images with four captions each, from general to specific.

Metrics of two rules, see `trainer.evaluation.metrics.chains`: that of HierarCaps and that of HyCoCLIP, appendix H. PEP (ARGENT)
measures how well the entailment cones of captions separate their own images from others; the probability of
entailment is 0 beyond a right angle, which creates ties, so that it is also reported for the signed margin.

Shapes: n images, t distinct captions, d embedding width.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hypergrit_common.errors import UserError
from trainer.evaluation import plots
from trainer.evaluation.embed import device_of
from trainer.evaluation.metrics.chains import (
    STEPS,
    captions_on_path,
    captions_within_radius,
    cone_scores,
    distances_to_root,
    kendall_tau,
    mismatched_rows,
    precision_recall,
)
from trainer.evaluation.metrics.entailment import average_precision, roc_auc
from trainer.evaluation.metrics.spaces import center_of, root_rule
from trainer.evaluation.sets.annotations import checksums
from trainer.evaluation.task import Embedder, Figure, ImageSource, TaskOptions, TaskResult
from trainer.evaluation.tasks.examples import Problems, distinct, embed_sources, limited, require
from trainer.evaluation.tasks.hierarcaps_expanded import EXPANDED, JOINER, LEVELS, evaluate_expanded, read_table
from trainer.models.cones import Cones
from trainer.models.config import Ranking
from trainer.models.dual_encoder import DualEncoder

FILE: Final = "hierarcaps/hierarcaps_test.csv"
IMAGES: Final = "hierarcaps/test_imgs"
NEGATIVES: Final = 100
"""Number of other images' captions that PEP compares each image with."""


class Row(NamedTuple):
    """File name and address of an image, and its captions from general to specific."""

    image: str
    url: str
    captions: tuple[str, ...]


def read_rows(path: Path, problems: Problems) -> list[Row]:
    """Read the test file with the columns captions and image_url. Raises UserError if it is malformed."""

    def read(row: Mapping[str, str | None], where: str) -> Row:
        url, captions = row["image_url"], tuple(text.strip() for text in (row["captions"] or "").split(JOINER))
        if len(captions) != LEVELS or not all(captions) or not url:
            raise UserError(f"{where} has no image_url and {LEVELS} captions; correct it")
        return Row(url.rsplit("/", 1)[-1], url, captions)

    return read_table(path, ("captions", "image_url"), problems, read)


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate the test file.

    radius/... are the metrics of HierarCaps, path/... those of HyCoCLIP: precision, recall and tau. pep/... exist for
    models with entailment cones, and expanded/... if the expanded test file is there. That file is listed
    in the details if it is malformed or lacks its images.
    """
    folder = root / IMAGES if (root / IMAGES).is_dir() else root / "coco" / "val2014"
    require(root, FILE)
    problems = Problems()
    rows = limited(read_rows(root / FILE, problems), options.max_examples)
    images = embed_sources(embedder, [ImageSource(path=folder / row.image, urls=(row.url,)) for row in rows])
    used = [rows[i] for i in images.usable.tolist()]
    texts, index = distinct([text for row in used for text in row.captions])
    chains = index.view(-1, LEVELS)
    image_features = images.features[images.rows[images.usable]]
    features = embedder.texts([*texts, ""])
    features, empty = features[:-1], features[-1]
    model = embedder.model
    scores = caption_scores(model, image_features, features, options.ranking)
    radii = (F.normalize(features, dim=-1) - F.normalize(empty, dim=-1)).norm(dim=-1)
    units = [F.normalize(image_features, dim=-1), F.normalize(features, dim=-1)]
    center = center_of(model, units, options.root)
    origin = torch.zeros(features.shape[1]) if center is None else center
    distances = distances_to_root(model, features, origin)
    predicted = captions_on_path(model, features, scores.argmax(1), origin, options.ranking)
    metrics = chain_metrics("radius", captions_within_radius(scores, radii), chains, radii)
    metrics |= chain_metrics("path", predicted, chains, distances)
    rules = {
        "score": options.ranking,
        "image": "center crop",
        "radius": "HierarCaps: distance of unit features to the empty text's",
        "path": f"HyCoCLIP: {STEPS} points from the root to the best caption; the root: "
        + root_rule(model, "this set", options.root),
        "ties": "equal distances count 0 in tau",
    }
    chance = {"radius/tau": 0.0, "path/tau": 0.0}
    if isinstance(model, Cones):
        seed = None if options.rule == "released" else options.seed
        found, at_random = pep(model, features, image_features, chains, seed)
        metrics, chance = metrics | found, chance | at_random
        rules["pep"] = f"{NEGATIVES} finest captions of other images, " + (
            "the first in file order" if seed is None else "drawn at random"
        )
    skipped, files = images.skipped(), [root / FILE]
    found, unused = dict[str, float](), dict[str, int]()
    if (root / EXPANDED).is_file():
        with problems.of("expanded"):
            found, unused = evaluate_expanded(embedder, root / EXPANDED, folder, options, problems)
    if found:
        metrics, chance, skipped = metrics | found, chance | dict.fromkeys(found, 0.5), skipped | unused
        rules["expanded"] = "own rule: the positive caption of a level scores higher than the negative one"
        files.append(root / EXPANDED)
    return TaskResult(
        metrics=metrics,
        chance=chance,
        rules=rules,
        n_used=len(used),
        skipped=skipped | problems.skipped,
        checksums=checksums(root, *files),
        details={
            "n_texts": len(texts),
            **problems.details(),
            "examples": examples(used, folder.relative_to(root), texts, predicted),
        },
        figures=[
            Figure(
                name="distances",
                title="Distance to the root by level of the caption",
                draw=partial(draw, distances[chains]),
            )
        ],
    )


@torch.inference_mode()
def caption_scores(model: DualEncoder, images: Tensor, texts: Tensor, ranking: Ranking) -> Tensor:
    """Scores [n t] of captions for images, from features [n d] and [t d]."""
    device = device_of(model)
    candidates = model.lift_text(texts.to(device))
    parts = [
        model.scores(model.lift_image(part.to(device)), candidates, ranking, "image").cpu() for part in images.split(64)
    ]
    return torch.cat(parts)


def chain_metrics(name: str, predicted: Tensor, chains: Tensor, distances: Tensor) -> dict[str, float]:
    """Precision, recall, tau and share of equal distances, from predictions [n s], chains [n l] and distances [t]."""
    precision, recall = precision_recall(predicted, chains)
    values = distances[chains]
    equal = (values[:, :-1] == values[:, 1:]).double().mean().item()
    tau = kendall_tau(values).mean().item()
    return {
        f"{name}/precision": precision,
        f"{name}/recall": recall,
        f"{name}/tau": tau,
        f"{name}/equal_distances": equal,
    }


def pep(
    model: Cones, texts: Tensor, images: Tensor, chains: Tensor, seed: int | None
) -> tuple[dict[str, float], dict[str, float]]:
    """PEP and its level at random: AUC and average precision of probability and margin, and the share of zeros."""
    own = torch.stack([chains.flatten(), torch.arange(len(chains)).repeat_interleave(LEVELS)], 1)
    others = mismatched_rows(chains[:, -1].tolist(), NEGATIVES, seed)
    if not len(others):
        return {}, {}
    (true, true_margin), (false, false_margin) = (cone_scores(model, texts, images, rows) for rows in (own, others))
    metrics = {
        "pep/auc": roc_auc(true, false),
        "pep/average_precision": average_precision(true, false, balanced=False),
        "pep/zeros": (torch.cat([true, false]) == 0).double().mean().item(),
        "pep/margin_auc": roc_auc(true_margin, false_margin),
        "pep/margin_average_precision": average_precision(true_margin, false_margin, balanced=False),
    }
    share = len(own) / (len(own) + len(others))
    return metrics, {
        "pep/auc": 0.5,
        "pep/margin_auc": 0.5,
        "pep/average_precision": share,
        "pep/margin_average_precision": share,
    }


def examples(rows: list[Row], folder: Path, texts: list[str], predicted: Tensor) -> list[dict[str, object]]:
    """List the first images with their captions, and the captions on the path from the root, in order."""
    return [
        {
            "image": (folder / row.image).as_posix(),
            "captions": list(row.captions),
            "path_from_root": list(dict.fromkeys(texts[i] for i in path.tolist())),
        }
        for row, path in list(zip(rows, predicted, strict=True))[:20]
    ]


def draw(distances: Tensor, path: Path) -> None:
    """Draw the distributions of the distances [n l] to the root, one box per level."""
    with plots.axes(path, 6, 3) as ax:
        ax.boxplot(distances.numpy(), showfliers=False)
        ax.set(xlabel="level of the caption, from general to specific", ylabel="distance to the root")
