"""Ground truth of scenes, and precision and recall of predicted boxes.

A predicted box is assigned to the phrase whose head noun overlaps its span, and to the leftmost if several do: in "a
red balloon to the left of a dog" the head comes first. Boxes are matched one to one with the objects of their phrase,
in descending order of their scores. A box is correct if it is matched at IoU >= 0.5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from demo.world.captions import Kind
from demo.world.scenes import Scene

Box = tuple[float, float, float, float]  # x_min, y_min, x_max, y_max in [0, 1]
MIN_IOU = 0.5


@dataclass(frozen=True, kw_only=True)
class TruePhrase:
    """A phrase of a caption with the boxes of its objects; absent and abstract phrases have none."""

    start: int
    end: int
    noun_start: int
    noun_end: int
    kind: Kind
    boxes: tuple[Box, ...]


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The ground truth of one image, convertible to and from JSON."""

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
    """A box predicted for the characters [start, end) of the caption."""

    start: int
    end: int
    box: Box
    score: float


def prediction_of(chunk: Mapping[str, Any], box: Mapping[str, Any]) -> Prediction:
    """Convert a box of the pipeline's tables (`schemas.rows.BOX`) and its noun chunk to a prediction."""
    xyxy = (box["x_min"], box["y_min"], box["x_max"], box["y_max"])
    return Prediction(start=chunk["start"], end=chunk["end"], box=xyxy, score=box["score"])


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counts over images, summed with `+`.

    `n_right` counts correct boxes, `n_absent` and `n_abstract` boxes predicted for phrases that have none.
    """

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


def object_boxes(scene: Scene) -> list[Box]:
    """Return the boxes of the objects of a scene, normalised to [0, 1]."""
    height, width = scene.image.shape[:2]
    return [(o.box[0] / width, o.box[1] / height, o.box[2] / width, o.box[3] / height) for o in scene.objects]


def truth_of(scene: Scene) -> Truth:
    """Return the ground truth of a scene, its boxes normalised to [0, 1]."""
    boxes = object_boxes(scene)
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
    """Return the IoU [a b] of all boxes of `a` with all boxes of `b`."""
    first = np.asarray(a, np.float64).reshape(-1, 1, 4)
    second = np.asarray(b, np.float64).reshape(1, -1, 4)
    sides = np.minimum(first[..., 2:], second[..., 2:]) - np.maximum(first[..., :2], second[..., :2])
    shared = np.clip(sides, 0, None).prod(axis=-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).prod(axis=-1) for boxes in (first, second)]
    union = areas[0] + areas[1] - shared
    return np.divide(shared, union, out=np.zeros_like(union), where=union > 0)


def phrase_of(start: int, end: int, truth: Truth) -> int | None:
    """Return the index of the phrase that the span [start, end) refers to; None for spans such as "this picture"."""
    covered = [
        index for index, phrase in enumerate(truth.phrases) if start < phrase.noun_end and phrase.noun_start < end
    ]
    return min(covered, key=lambda index: truth.phrases[index].start, default=None)


class Match(NamedTuple):
    """A prediction, the index of its phrase (None: no phrase), and True if it is correct."""

    prediction: Prediction
    phrase: int | None
    is_correct: bool


def matches(predictions: Sequence[Prediction], truth: Truth) -> list[Match]:
    """Match predictions with the true boxes of their phrases, in descending order of their scores."""
    unmatched = {index: list(phrase.boxes) for index, phrase in enumerate(truth.phrases)}
    found = []
    for prediction in sorted(predictions, key=lambda p: -p.score):
        index = phrase_of(prediction.start, prediction.end, truth)
        is_correct = False
        if index is not None and unmatched[index]:
            overlaps = iou([prediction.box], unmatched[index])[0]
            best = int(overlaps.argmax())
            is_correct = bool(overlaps[best] >= MIN_IOU)
            if is_correct:
                unmatched[index].pop(best)
        found.append(Match(prediction, index, is_correct))
    return found


def tally(predictions: Sequence[Prediction], truth: Truth) -> Tally:
    """Count correct, predicted and true boxes of one image."""
    found = matches(predictions, truth)
    kinds = [truth.phrases[match.phrase].kind for match in found if match.phrase is not None]
    return Tally(
        n_right=sum(match.is_correct for match in found),
        n_predicted=len(found),
        n_true=sum(len(phrase.boxes) for phrase in truth.phrases),
        n_absent=kinds.count("absent"),
        n_abstract=kinds.count("abstract"),
    )
