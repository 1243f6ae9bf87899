"""Edges of dependency trees in the text tower: a word entails its head, and a word without context entails itself.

The relations of Syntax-MERU (section 4) on parsed captions. MERU and HyCoCLIP, which have the same parameters, are
measured in the same way, as in figure 2 of the paper.

Shapes: e edges, d width of the features.
"""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from trainer.analyses.order import roc_figure
from trainer.analyses.shard_points import HELD_OUT, read_shards
from trainer.evaluation.embed import device_of, embed_words
from trainer.evaluation.metrics.entailment import (
    CHANCE,
    TIE,
    PairScores,
    order_share,
    pair_metrics,
    roc_auc,
    score_pairs,
)
from trainer.evaluation.plots import draw_histograms
from trainer.evaluation.sets.annotations import checksums
from trainer.evaluation.task import (
    Embedder,
    Figure,
    MissingFilesError,
    TaskOptions,
    TaskResult,
    UnsuitableModelError,
)
from trainer.models.config import SyntaxMERUConfig
from trainer.models.dual_encoder import DualEncoder
from trainer.models.meru import MERU
from trainer.models.phyclip import PHyCLIP
from trainer.models.registry import model_name
from trainer.models.syntax_meru import SyntaxMERU
from trainer.models.terms import Entails
from trainer.text.relations import RELATIONS

MAX_CAPTIONS: Final = 5000
BATCH_SIZE: Final = 256
MIN_EDGES: Final = 10
"""Relations with fewer edges are not listed."""
NAMES: Final = {"syntax_edge": "word > head", "syntax_word": "word alone > word in caption"}
EDGES: Final = (
    Entails(name="syntax_edge", general="child", specific="head"),
    Entails(name="syntax_word", general="word_alone", specific="word"),
)


def with_words(model: DualEncoder) -> SyntaxMERU:
    """The model as a Syntax-MERU, which has points of words. Raises UnsuitableModelError for a model with other parameters."""
    if isinstance(model, SyntaxMERU):
        return model
    if not isinstance(model, MERU) or isinstance(model, PHyCLIP):
        raise UnsuitableModelError(f"{model_name(model)} has no points of words; choose syntax_meru, meru or hycoclip")
    names = {field.name for field in dataclasses.fields(SyntaxMERUConfig)}
    settings = {
        field.name: getattr(model.config, field.name)
        for field in dataclasses.fields(model.config)
        if field.name in names
    }
    converted = SyntaxMERU(SyntaxMERUConfig(**settings))
    converted.load_state_dict(model.state_dict())
    converted.visual, converted.textual = model.visual, model.textual  # with the frozen tower, if it is a head
    return converted.to(device_of(model)).eval()


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate the edges of parsed captions.

    Raises MissingFilesError without held-out shards with parses, and UnsuitableModelError for a model without points of words.
    """
    model = with_words(embedder.model)
    limit = options.max_examples or MAX_CAPTIONS
    content = read_shards(root, model.config.image.size_px, limit)
    parsed = [(row.caption, row.words) for row in content.rows if row.words]
    points, relations = embed_words(model, embedder.tokenizer, parsed, BATCH_SIZE)
    if not len(relations):
        raise MissingFilesError(f"held-out shards: expected captions with parses in {root / HELD_OUT}/00000.tar")
    scores = {entails.name: score_pairs(model, entails, points, None, options.seed) for entails in EDGES}
    metrics: dict[str, float] = {}
    for name, pairs in scores.items():
        metrics |= {f"{name}/{key}": value for key, value in pair_metrics(pairs).items()}
    chance = dict.fromkeys(metrics, CHANCE)
    for name, pairs in scores.items():
        metrics[f"{name}/mean_energy_radians"] = (-pairs.true).clamp(min=0).mean().item()
    return TaskResult(
        metrics=metrics,
        chance=chance,
        rules={
            "direction": "word entails its head; word without context entails itself in its caption",
            "mismatched": "heads of other edges; together they weigh as much as the true ones in ap",
        },
        n_used=len(parsed),
        skipped=dict(content.skipped + Counter({"caption without parse": len(content.rows) - len(parsed)})),
        checksums=checksums(root, root / HELD_OUT),
        details={"number_of_edges": len(relations), "relations": by_relation(scores["syntax_edge"], relations)},
        figures=figures_of(scores),
    )


def by_relation(pairs: PairScores, relations: Tensor) -> list[dict[str, Any]]:
    """Order and AUC of the edges of each relation against all mismatched pairs; the most frequent relations first."""
    numbers, counts = relations.unique(return_counts=True)
    rows = []
    for number, count in sorted(zip(numbers.tolist(), counts.tolist(), strict=True), key=lambda row: -row[1]):
        if count < MIN_EDGES:
            continue
        mask = (relations == number).to(pairs.true.device)
        order = order_share(pairs.general[mask], pairs.specific[mask], TIE)
        auc = roc_auc(pairs.true[mask], pairs.mismatched)
        rows.append({"relation": RELATIONS[number], "edges": count, "order": order, "auc": auc})
    return rows


def figures_of(scores: dict[str, PairScores]) -> list[Figure]:
    """ROC curves of both relations, and the distances of words and heads from the origin."""
    edges = scores["syntax_edge"]
    groups = {
        name: values.double().cpu().numpy() for name, values in (("words", edges.general), ("heads", edges.specific))
    }
    label = "distance to the origin, contextual words of edges"
    distances = Figure("distances", "Words and their heads", draw_histograms, groups, label)
    drawn = {NAMES[name]: pairs for name, pairs in scores.items() if len(pairs.mismatched)}
    return [roc_figure("True against mismatched edges", drawn), distances] if drawn else [distances]
