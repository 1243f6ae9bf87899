"""Tasks in which the model chooses between the true and a false caption of an image.

Shapes: n pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

import torch
from torch import Tensor

from trainer.evaluation.metrics.items import Items, mean_items
from trainer.evaluation.metrics.ranking import choice_scores, is_first_best
from trainer.evaluation.sets.annotations import below
from trainer.evaluation.task import Embedder, Fit, ImageSource
from trainer.evaluation.tasks.examples import distinct, embed_sources
from trainer.models.config import Ranking

N_MISTAKES: Final = 12
"""Number of wrong choices in the details of a result."""


@dataclass(frozen=True, kw_only=True)
class CaptionPair:
    """An image with a true and a false caption, and the group that the pair is counted in."""

    image: ImageSource
    true: str
    false: str
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The pairs whose image is usable, their correctness [n], and the number of other pairs by reason."""

    pairs: Sequence[CaptionPair]
    correct: Tensor
    skipped: Mapping[str, int]

    @property
    def accuracy(self) -> float:
        """Share of correct pairs."""
        return self.correct.double().mean().item()

    def by_group(self) -> dict[str, tuple[float, int]]:
        """Accuracy and number of pairs of each group, from the largest to the smallest group."""
        names, index = distinct([pair.group for pair in self.pairs])
        counts = torch.bincount(index, minlength=len(names))
        correct = torch.bincount(index, self.correct.double(), minlength=len(names)) / counts
        order = counts.argsort(descending=True, stable=True).tolist()
        return {names[i]: (correct[i].item(), int(counts[i])) for i in order}

    def all_items(self, root: Path) -> Items:
        """Correctness of all pairs; the pairs of one image below `root` are a unit."""
        units = [crc32(below(root, pair.image.path).encode()) for pair in self.pairs]
        return mean_items(self.correct, torch.tensor(units))

    def items(self, root: Path) -> dict[str, Items]:
        """Correctness of the pairs of each group."""
        every, groups = self.all_items(root), [pair.group for pair in self.pairs]
        return {
            name: mean_items(self.correct[rows], torch.from_numpy(every.units)[rows])
            for name in dict.fromkeys(groups)
            for rows in [torch.tensor([group == name for group in groups])]
        }

    def mistakes(self, root: Path) -> list[dict[str, object]]:
        """List pairs with a wrong choice, evenly spaced: path of the image below `root`, box and captions."""
        wrong = (~self.correct).nonzero().squeeze(1)
        chosen = wrong[torch.linspace(0, len(wrong) - 1, min(N_MISTAKES, len(wrong))).long()].tolist()
        rows: list[dict[str, object]] = []
        for pair in map(self.pairs.__getitem__, chosen):
            box: dict[str, object] = {"box": list(pair.image.box)} if pair.image.box else {}
            image = {"image": below(root, pair.image.path)}
            rows.append({**image, **box, "group": pair.group, "true": pair.true, "chosen": pair.false})
        return rows


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
    return Choices(pairs=used, correct=correct, skipped=images.skipped())
