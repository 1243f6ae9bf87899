"""Tasks in which the model chooses between the true and a false caption of an image.

Shapes: n pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.evaluation.choices import choice_scores, is_first_best
from trainer.evaluation.tasks.annotations import distinct, embed_sources
from trainer.evaluation.tasks.base import Embedder, Fit, ImageSource
from trainer.models.config import Ranking


@dataclass(frozen=True, kw_only=True)
class CaptionPair:
    """An image with a true and a false caption, and the group that the pair is counted in."""

    image: ImageSource
    true: str
    false: str
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Groups and correctness [n] of the pairs whose image is usable, and the number of other pairs by reason."""

    groups: Sequence[str]
    correct: Tensor
    skipped: Mapping[str, int]

    @property
    def accuracy(self) -> float:
        """Share of correct pairs."""
        return self.correct.double().mean().item()

    def by_group(self) -> dict[str, tuple[float, int]]:
        """Accuracy and number of pairs of each group, from the largest to the smallest group."""
        names, index = distinct(self.groups)
        counts = torch.bincount(index, minlength=len(names))
        correct = torch.bincount(index, self.correct.double(), minlength=len(names)) / counts
        order = counts.argsort(descending=True, stable=True).tolist()
        return {names[i]: (correct[i].item(), int(counts[i])) for i in order}


def choose(
    embedder: Embedder,
    pairs: Sequence[CaptionPair],
    ranking: Ranking,
    fit: Fit,
    *,
    legacy_norm: bool = False,
    required: bool = True,
) -> Choices:
    """Choose between the captions of each pair. A choice is correct if the true caption has the larger score.

    Raises MissingFilesError if no image is usable, unless `required` is false.
    """
    images = embed_sources(embedder, [pair.image for pair in pairs], fit, legacy_norm=legacy_norm, required=required)
    used = [pairs[i] for i in images.usable.tolist()]
    texts, rows = distinct([text for pair in used for text in (pair.true, pair.false)])
    correct = torch.zeros(0, dtype=torch.bool)
    if used:
        scores = choice_scores(
            embedder.model,
            images.features,
            embedder.texts(texts),
            images.rows[images.usable],
            rows.view(-1, 2),
            ranking,
        )
        correct = is_first_best(scores)
    return Choices(groups=[pair.group for pair in used], correct=correct, skipped=images.skipped())
