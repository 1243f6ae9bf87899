"""The questions of a row to the networks: boxes, the cosines of crops and phrases, then that of image and caption."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import torch

from common.images import STORED_IMAGE_LIMITS, Image, decode
from pipeline.batches.batcher import Ask, Asked
from pipeline.batches.networks import GroundItem, GroundNetwork, TowerNetwork
from pipeline.ground.boxes import Boxes, given_boxes
from pipeline.ground.stage import Ground, RemovalReasons, spans_of
from pipeline.ground.stage import Row as Columns
from pipeline.images import corners, crop_box
from pipeline.score.filters import add_cosine
from pipeline.score.stage import Score, compared_boxes, measure_row, phrase_text
from schemas.rows import GROUNDED

STORED_BOXES: Final = GROUNDED.field("boxes").type


@dataclass(frozen=True)
class Inferred:
    """The result of a row: boxes, removed noun chunks, the cosine of each compared box, and that of the image."""

    boxes: Boxes
    removed: RemovalReasons
    cosines: dict[int, float] = field(default_factory=dict)
    similarity: float | None = None


Steps = Generator[Asked, list[Any], Inferred]


@dataclass(frozen=True)
class Models:
    """The stages of a process, and their networks."""

    ground: Ground
    score: Score
    grounder: GroundNetwork
    texts: TowerNetwork
    images: TowerNetwork

    def infer(self, row: Columns, image: bytes) -> Steps:
        """Compute what the stages `ground` and `score` would for a row."""
        pixels: Image | None = None
        if row["given_noun_chunks"]:
            boxes, removed = given_boxes(row), dict[int, str]()
        else:
            item = GroundItem(image, row["caption"], spans_of(row))
            ((grounded, pixels),) = yield Asked([Ask(self.grounder, self.ground.bucket(row), item)], len(image))
            boxes, removed = self.ground.boxes_of(row, grounded)
            image = b""
        if not boxes:
            return Inferred(boxes, removed)
        row = {**row, "boxes": pa.array([boxes], STORED_BOXES)[0].as_py()}  # scores and corners become float32
        thresholds, keep_all = self.score.thresholds, self.score.keep_all
        scores = measure_row(row, thresholds)
        chosen = compared_boxes(row, scores, keep_all)
        if pixels is None and (chosen or keep_all):
            pixels = decode(image, STORED_IMAGE_LIMITS)
        cosines: dict[int, float] = {}
        if chosen and pixels is not None:
            crops = [crop_box(pixels, corners(row["boxes"][b])) for b in chosen]
            values = yield from self._cosines(crops, [phrase_text(row, row["boxes"][b]) for b in chosen], pixels)
            cosines = dict(zip(chosen, values, strict=True))
            scores = [add_cosine(s, cosines[b], thresholds) if b in cosines else s for b, s in enumerate(scores)]
        if pixels is None or not (keep_all or any(score["removed"] is None for score in scores)):
            return Inferred(boxes, removed, cosines)
        (similarity,) = yield from self._cosines([pixels], [row["caption"]], pixels)
        return Inferred(boxes, removed, cosines, similarity)

    def _cosines(
        self, images: list[Image], texts: list[str], pixels: Image
    ) -> Generator[Asked, list[Any], list[float]]:
        length = self.score.scorer.padded_length
        asks = [Ask(self.texts, length(text), text, is_shared=True) for text in texts]
        answers = yield Asked([*asks, *(Ask(self.images, None, image) for image in images)], pixels.nbytes)
        found, n = [torch.stack(part) for part in (answers[: len(texts)], answers[len(texts) :])], len(texts)
        assert n == len(images)
        cosines: list[float] = (found[1] * found[0]).sum(dim=-1).tolist()
        return cosines
