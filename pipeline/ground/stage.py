"""Boxes for the phrases of each caption, by a grounding network, or as the row brought them along."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import torch
from torchvision.ops import nms

from pipeline.errors import UserError
from pipeline.given import move_span
from pipeline.ground.grounder import Detection, Grounder, Image
from pipeline.ground.load import load_grounder
from pipeline.images import StoredImages
from schemas.rows import GROUNDED
from schemas.table import Drop, add_columns, drop_rows, kept_indices


@dataclass(frozen=True, kw_only=True)
class GroundConfig:
    """The network that finds phrases in images."""

    grounder: str = "miniature"  # miniature; a GLIP folder or weight file; a folder or name of transformers' Grounding DINO or OWLv2
    device: str | None = None  # torch device; none: cuda where there is one, else cpu
    batch_size: int = 8  # images of the same size that go through the network together
    floor: float = 0.1  # boxes with a lower score are not stored; the decision falls in `score`
    nms_iou: float = 0.6  # of two boxes of an image that overlap more, whatever their phrases, the better one stays
    prompt: Literal["caption", "phrases"] = "caption"  # GLIP reads the whole caption, or a list of its phrases

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"ground.batch_size is {self.batch_size}; give 1 or more")
        for name in ("floor", "nms_iou"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"ground.{name} is {getattr(self, name)}; give a number from 0 to 1")


class Ground:
    """Adds `boxes`, best first. Rows that bring boxes keep them and skip the network."""

    def __init__(
        self, config: GroundConfig, grounder: Grounder | None = None, decode: StoredImages | None = None
    ) -> None:
        """`decode` may be shared with other stages of the process."""
        self.config = config
        self.decode = decode or StoredImages(max_bytes=0)
        self.grounder = grounder or load_grounder(config.grounder, config.device, config.floor, config.prompt)

    def __call__(self, table: pa.Table) -> pa.Table:
        kept = kept_indices(table)
        light = table.select(["caption", "caption_original", "noun_chunks", "given_noun_chunks", "width", "height"])
        rows: dict[int, dict[str, Any]] = {i: light.slice(i, 1).to_pylist()[0] for i in kept}
        boxes: dict[int, list[dict[str, Any]] | None] = {
            i: given_boxes(row) for i, row in rows.items() if row["given_noun_chunks"]
        }
        wanted = sorted(
            (i for i in kept if i not in boxes), key=lambda i: (rows[i]["height"] or 0, rows[i]["width"] or 0, i)
        )
        for batch in batches(wanted, rows, self.config.batch_size):
            images = [self.decode(table["image"][i].as_py()) for i in batch]
            boxes.update(zip(batch, self._ground(images, [rows[i] for i in batch]), strict=True))
        drops = {}
        for i in kept:
            if not rows[i]["noun_chunks"]:
                drops[i] = Drop("ungroundable", "no given phrase is found in the cleaned caption")
            elif boxes[i] is None:
                drops[i] = Drop("ungroundable", "the grounder knows no word of any phrase")
            elif not boxes[i]:
                drops[i] = Drop("no_box", f"{sum(not c['removed'] for c in rows[i]['noun_chunks'])} phrases")
        found = {i: {"boxes": boxes[i]} for i in kept}
        return drop_rows(add_columns(table, GROUNDED, found), "ground", drops)

    def _ground(self, images: Sequence[Image], rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]] | None]:
        """Boxes of images of one size; None where no phrase could be asked for."""
        phrases = [[n for n, chunk in enumerate(row["noun_chunks"]) if chunk["removed"] is None] for row in rows]
        spans = [
            [(row["noun_chunks"][n]["start"], row["noun_chunks"][n]["end"]) for n in numbers]
            for row, numbers in zip(rows, phrases, strict=True)
        ]
        found = self.grounder(images, [row["caption"] for row in rows], spans)
        return [
            None if detections is None else self._pack(detections, numbers)
            for detections, numbers in zip(found, phrases, strict=True)
        ]

    def _pack(self, detections: Sequence[Detection], numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The detections that stay, with the numbers of their phrases among all noun chunks."""
        chosen = select(detections, self.config.floor, self.config.nms_iou)
        return [pack(numbers[d.phrase], d.box, d.score) for d in chosen]


def select(detections: Sequence[Detection], floor: float, nms_iou: float) -> list[Detection]:
    """Detections with at least the floor's score, best first, after non-maximum suppression across all phrases.

    A box suppresses only worse ones, so a threshold on the score may come later and changes nothing here.
    """
    good = sorted((d for d in detections if d.score >= floor), key=lambda d: (-d.score, d.phrase, d.box))
    if not good:
        return []
    boxes, scores = torch.tensor([d.box for d in good]), torch.tensor([d.score for d in good])
    return [good[i] for i in sorted(nms(boxes, scores, nms_iou).tolist())]


def batches(indices: Sequence[int], rows: dict[int, dict[str, Any]], size: int) -> Iterator[list[int]]:
    """Neighbours among `indices` whose images have one size, at most `size` together."""
    batch: list[int] = []
    for i in indices:
        same = batch and all(rows[batch[0]][side] == rows[i][side] for side in ("width", "height"))
        if batch and (not same or len(batch) == size):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def given_boxes(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The boxes that a row brought along, best first, without those whose phrase did not survive the cleaning."""
    numbers = {(chunk["start"], chunk["end"]): n for n, chunk in enumerate(row["noun_chunks"])}
    found = []
    for given in row["given_noun_chunks"]:
        span = move_span(row["caption_original"] or "", row["caption"], given["start"], given["end"])
        if span in numbers:
            box = (given["x_min"], given["y_min"], given["x_max"], given["y_max"])
            found.append(pack(numbers[span], box, given["score"]))
    return sorted(found, key=lambda box: -box["score"])


def pack(phrase: int, box: tuple[float, float, float, float], score: float) -> dict[str, Any]:
    """schemas.rows.BOX, corners cut to the image."""
    corners = zip(("x_min", "y_min", "x_max", "y_max"), box, strict=True)
    return {"phrase": phrase, **{name: min(max(value, 0.0), 1.0) for name, value in corners}, "score": score}
