"""How right predicted boxes are, against the known truth of a scene.

A predicted box belongs to the phrase whose head noun its span covers, the leftmost where it covers several: English
puts the head of "a red balloon to the left of a dog" first. It is right when it can be matched one to one, the most
certain first, with an object of that phrase at IoU >= 0.5.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demo.world.captions import GROUNDED_KINDS, Kind
from demo.world.scenes import Scene

Box = tuple[float, float, float, float]  # x_min, y_min, x_max, y_max in [0, 1]
MIN_IOU = 0.5


@dataclass(frozen=True, kw_only=True)
class TruePhrase:
    """A phrase of the caption and the boxes of what it names; none for what is absent or abstract."""

    start: int
    end: int
    noun_start: int
    noun_end: int
    kind: Kind
    boxes: tuple[Box, ...]


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is true of one image, ready for JSON."""

    seed: int
    style: str
    caption: str
    phrases: tuple[TruePhrase, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Truth":
        phrases = tuple(
            TruePhrase(**{**phrase, "boxes": tuple(tuple(box) for box in phrase["boxes"])})
            for phrase in data["phrases"]
        )
        return cls(seed=data["seed"], style=data["style"], caption=data["caption"], phrases=phrases)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A box that a detector attached to the characters [start, end) of the caption."""

    start: int
    end: int
    box: Box
    score: float


def prediction_of(chunk: Mapping[str, Any], box: Mapping[str, Any]) -> Prediction:
    """A box of the pipeline's tables (schemas.rows.BOX) and the noun chunk that it was found for."""
    xyxy = (box["x_min"], box["y_min"], box["x_max"], box["y_max"])
    return Prediction(start=chunk["start"], end=chunk["end"], box=xyxy, score=box["score"])


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counts over images; they add up with `+`. `n_absent`, `n_abstract`: boxes predicted for what has none."""

    n_right: int = 0
    n_predicted: int = 0
    n_true: int = 0
    n_absent: int = 0
    n_abstract: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(**{name: count + getattr(other, name) for name, count in asdict(self).items()})

    @property
    def precision(self) -> float:
        return self.n_right / self.n_predicted if self.n_predicted else 0.0

    @property
    def recall(self) -> float:
        return self.n_right / self.n_true if self.n_true else 0.0


def truth_of(scene: Scene) -> Truth:
    """The scene's phrases with their boxes, normalised to [0, 1]."""
    height, width = scene.image.shape[:2]
    boxes = [(o.box[0] / width, o.box[1] / height, o.box[2] / width, o.box[3] / height) for o in scene.objects]
    phrases = tuple(
        TruePhrase(
            start=phrase.start,
            end=phrase.end,
            noun_start=phrase.noun_start,
            noun_end=phrase.noun_end,
            kind=phrase.kind,
            boxes=tuple(boxes[index] for index in phrase.objects),
        )
        for phrase in scene.phrases
    )
    return Truth(seed=scene.seed, style=scene.style, caption=scene.caption, phrases=phrases)


def iou(a: Sequence[Box], b: Sequence[Box]) -> NDArray[np.float64]:
    """Intersection over union of every box of `a` with every box of `b`: [a b]."""
    first = np.asarray(a, np.float64).reshape(-1, 1, 4)
    second = np.asarray(b, np.float64).reshape(1, -1, 4)
    sides = np.minimum(first[..., 2:], second[..., 2:]) - np.maximum(first[..., :2], second[..., :2])
    shared = np.clip(sides, 0, None).prod(axis=-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).prod(axis=-1) for boxes in (first, second)]
    union = areas[0] + areas[1] - shared
    return np.divide(shared, union, out=np.zeros_like(union), where=union > 0)


def phrase_of(start: int, end: int, truth: Truth) -> int | None:
    """Index of the phrase that the span [start, end) speaks of, or None ("this picture")."""
    covered = [
        index for index, phrase in enumerate(truth.phrases) if start < phrase.noun_end and phrase.noun_start < end
    ]
    return min(covered, key=lambda index: truth.phrases[index].start, default=None)


def matches(predictions: Sequence[Prediction], truth: Truth) -> list[tuple[Prediction, int | None, bool]]:
    """Each prediction, the most certain first, with its phrase's index and whether it is right."""
    free = {index: list(phrase.boxes) for index, phrase in enumerate(truth.phrases)}
    found = []
    for prediction in sorted(predictions, key=lambda p: -p.score):
        index = phrase_of(prediction.start, prediction.end, truth)
        right = False
        if index is not None and free[index]:
            overlaps = iou([prediction.box], free[index])[0]
            best = int(overlaps.argmax())
            right = bool(overlaps[best] >= MIN_IOU)
            if right:
                free[index].pop(best)
        found.append((prediction, index, right))
    return found


def tally(predictions: Sequence[Prediction], truth: Truth) -> Tally:
    """Right, predicted and true (phrase, object) pairs of one image."""
    found = matches(predictions, truth)
    kinds = [truth.phrases[index].kind for _, index, _ in found if index is not None]
    return Tally(
        n_right=sum(right for _, _, right in found),
        n_predicted=len(found),
        n_true=sum(len(phrase.boxes) for phrase in truth.phrases),
        n_absent=kinds.count("absent"),
        n_abstract=kinds.count("abstract"),
    )


def recall_at(
    k: int, predictions: Sequence[Prediction], truth: Truth, kinds: Iterable[Kind] = GROUNDED_KINDS
) -> list[bool]:
    """For each phrase of these kinds: does one of its k most certain boxes hit one of its objects?"""
    wanted = set(kinds)
    hits = []
    for index, phrase in enumerate(truth.phrases):
        if phrase.kind in wanted:
            own = sorted((p for p in predictions if phrase_of(p.start, p.end, truth) == index), key=lambda p: -p.score)[
                :k
            ]
            hits.append(bool(own) and bool((iou([p.box for p in own], phrase.boxes) >= MIN_IOU).any()))
    return hits


def average_precision(images: Iterable[tuple[Sequence[Prediction], Truth]]) -> float:
    """AP at IoU 0.5 over all images and phrases: area under precision, made monotone, against recall."""
    scored, n_true = [], 0
    for predictions, truth in images:
        n_true += sum(len(phrase.boxes) for phrase in truth.phrases)
        scored += [(prediction.score, right) for prediction, _, right in matches(predictions, truth)]
    if not n_true or not scored:
        return 0.0
    right = np.array([hit for _, hit in sorted(scored, key=lambda pair: -pair[0])], np.float64)
    precision = right.cumsum() / np.arange(1, len(right) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float((envelope * right).sum() / n_true)
