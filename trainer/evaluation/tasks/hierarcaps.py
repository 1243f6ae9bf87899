"""HierarCaps (Alper and Averbuch-Elor 2024): images with four captions each, from general to specific.

Metrics of two rules, that of HierarCaps and that of HyCoCLIP, appendix H, and PEP: see
`trainer.evaluation.metrics.chains`.

Shapes: n images, t distinct captions, l levels of a chain.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from torch import Tensor

from hypergrit_common.errors import UserError
from trainer.evaluation import plots
from trainer.evaluation.metrics.chains import NEGATIVES, STEPS, evaluate_chains
from trainer.evaluation.metrics.spaces import quantity, root_rule
from trainer.evaluation.sets.annotations import checksums
from trainer.evaluation.task import Embedder, Figure, ImageSource, TaskOptions, TaskResult
from trainer.evaluation.tasks.examples import Problems, distinct, embed_sources, limited, require
from trainer.evaluation.tasks.hierarcaps_expanded import EXPANDED, JOINER, LEVELS, evaluate_expanded, read_table
from trainer.models.cones import Cones
from trainer.models.dual_encoder import DualEncoder

FILE: Final = "hierarcaps/hierarcaps_test.csv"
IMAGES: Final = "hierarcaps/test_imgs"


class HierarCapsRow(NamedTuple):
    """File name and address of an image, and its captions from general to specific."""

    image: str
    url: str
    captions: tuple[str, ...]


def read_rows(path: Path, problems: Problems) -> list[HierarCapsRow]:
    """Read the test file with the columns captions and image_url. Raises UserError if it is malformed."""

    def read(row: Mapping[str, str | None], where: str) -> HierarCapsRow:
        url, captions = row["image_url"], tuple(text.strip() for text in (row["captions"] or "").split(JOINER))
        if len(captions) != LEVELS or not all(captions) or not url:
            raise UserError(f"{where} has no image_url and {LEVELS} captions; correct it")
        return HierarCapsRow(url.rsplit("/", 1)[-1], url, captions)

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
    model = embedder.model
    result = evaluate_chains(embedder, image_features, texts, chains, options)
    metrics, chance, rules = result.metrics, result.chance, chain_rules(model, options)
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
            "examples": examples(used, folder.relative_to(root), texts, result.predicted),
        },
        figures=[figure("distances", "Distance to the root by level of the caption", model, result.distances[chains])],
    )


def chain_rules(model: DualEncoder, options: TaskOptions) -> dict[str, str]:
    """The rules of the metrics of chains, for a result."""
    negatives = "the first in file order" if options.rule == "released" else "drawn at random"
    root = root_rule(model, "this set", options.root)
    return {
        "score": options.ranking,
        "image": "center crop",
        "radius": "HierarCaps: distance of unit features to the empty text's",
        "path": f"HyCoCLIP: {STEPS} points from the root to the best caption; the root: {root}",
        "distance": quantity(model, in_metric=True),
        "ties": "equal distances count 0 in tau",
    } | ({"pep": f"{NEGATIVES} finest captions of other images, {negatives}"} if isinstance(model, Cones) else {})


def examples(rows: list[HierarCapsRow], folder: Path, texts: list[str], predicted: Tensor) -> list[dict[str, object]]:
    """List the first images with their captions, and the captions on the path from the root, in order."""
    return [
        {
            "image": (folder / row.image).as_posix(),
            "captions": list(row.captions),
            "path_from_root": list(dict.fromkeys(texts[i] for i in path.tolist())),
        }
        for row, path in list(zip(rows, predicted, strict=True))[:20]
    ]


def figure(name: str, title: str, model: DualEncoder, distances: Tensor) -> Figure:
    """A figure of the distances [n l] of `distances_to_root`, one box per level."""
    return Figure(name, title, draw, distances, quantity(model, in_metric=True))


def draw(distances: Tensor, label: str, path: Path) -> None:
    """Draw the distributions of distances [n l], one box per level."""
    with plots.axes(path, 6, 3) as ax:
        ax.boxplot(distances.numpy(), showfliers=False)
        ax.set(xlabel="level of the caption, from general to specific", title=label)
