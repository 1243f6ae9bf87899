"""Boxes for the phrases of each caption, by a grounding network, or as the row brought them along."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
import torch
from torchvision.ops import nms

from pipeline.ground.config import GroundConfig
from pipeline.ground.grounder import Detection, Grounded, Grounder, prefetch
from pipeline.ground.load import load_grounder
from pipeline.images import corners
from pipeline.parse.grit_phrases import move_span
from pipeline.stored_images import StoredImages
from schemas.rows import GROUNDED
from schemas.table import Drop, add_columns, drop_rows, kept_indices, set_column

Boxes = list[dict[str, Any]]  # schemas.rows.BOX, best first


class Ground:
    """Adds `boxes`, best first. Rows that bring boxes keep them and skip the network."""

    def __init__(
        self, config: GroundConfig, grounder: Grounder | None = None, decode: StoredImages | None = None
    ) -> None:
        """`decode` may be shared with other stages of the process."""
        self.config = config
        self.decode = decode or StoredImages(max_bytes=0)
        self.grounder = grounder or load_grounder(
            config.grounder,
            config.device,
            config.floor,
            config.prompt,
            vocabulary=config.vocabulary,
            precision=config.precision,
            compile=config.compile,
        )

    def __call__(self, table: pa.Table) -> pa.Table:
        kept = kept_indices(table)
        light = table.select(["caption", "caption_original", "noun_chunks", "given_noun_chunks", "width", "height"])
        rows = dict(zip(kept, light.take(pa.array(kept, pa.int64())).to_pylist(), strict=True))
        boxes: dict[int, Boxes] = {i: given_boxes(row) for i, row in rows.items() if row["given_noun_chunks"]}
        sizes = {i: (rows[i]["height"] or 1, rows[i]["width"] or 1) for i in kept if i not in boxes}
        buckets = {i: self.grounder.bucket(*size) for i, size in sizes.items()}
        order = sorted(sizes, key=lambda i: (buckets[i], sizes[i], i))

        def prepare(batch: list[int]) -> tuple[list[int], Any]:
            images = [self.decode(table["image"][i].as_py()) for i in batch]
            spans = [[(chunk["start"], chunk["end"]) for _, chunk in asked(rows[i])] for i in batch]
            return batch, self.grounder.prepare(images, [rows[i]["caption"] for i in batch], spans)

        def collect(item: tuple[list[int], Any]) -> tuple[list[int], list[Grounded]]:
            batch, output = item
            return batch, self.grounder.collect(output)

        prepared = prefetch(prepare, batches(order, buckets, self.config.batch_size))
        outputs = ((batch, self.grounder.forward(part)) for batch, part in prepared)
        removed: dict[int, dict[int, str]] = {}  # row -> noun chunk -> why the grounder cannot ask for it
        for batch, answers in prefetch(collect, outputs):
            for i, grounded in zip(batch, answers, strict=True):
                numbers = [n for n, _ in asked(rows[i])]
                chosen = select(grounded.boxes, self.config.floor, self.config.nms_iou)
                boxes[i] = [pack(numbers[d.phrase], d.box, d.score) for d in chosen]
                if grounded.dropped:
                    removed[i] = {numbers[phrase]: reason for phrase, reason in grounded.dropped.items()}
        table = mark_removed(table, rows, removed)
        drops = {}
        for i in kept:
            if not rows[i]["noun_chunks"]:
                drops[i] = Drop("ungroundable", "no given phrase is found in the cleaned caption")
            elif not boxes[i]:
                left = len(asked(rows[i]))
                why = ", ".join(sorted(set(removed.get(i, {}).values())))
                drops[i] = Drop("no_box", f"{left} phrases") if left else Drop("ungroundable", why)
        found = {i: {"boxes": boxes[i]} for i in kept}
        return drop_rows(add_columns(table, GROUNDED, found), "ground", drops)


def asked(row: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Numbers and noun chunks of the phrases to look for."""
    return [(n, chunk) for n, chunk in enumerate(row["noun_chunks"]) if chunk["removed"] is None]


def mark_removed(
    table: pa.Table, rows: Mapping[int, dict[str, Any]], removed: Mapping[int, Mapping[int, str]]
) -> pa.Table:
    """The table whose noun chunks say why the grounder could not be asked for them; `rows` say it too."""
    if not removed:
        return table
    column = table["noun_chunks"].to_pylist()
    for i, reasons in removed.items():
        for n, reason in reasons.items():
            column[i][n]["removed"] = rows[i]["noun_chunks"][n]["removed"] = reason
    return set_column(table, "noun_chunks", pa.array(column, table.schema.field("noun_chunks").type))


def select(detections: Sequence[Detection], floor: float, nms_iou: float) -> list[Detection]:
    """Detections with at least the floor's score, best first, after non-maximum suppression across all phrases.

    A box suppresses only worse ones, so a threshold on the score may come later and changes nothing here.
    """
    good = sorted((d for d in detections if d.score >= floor), key=lambda d: (-d.score, d.phrase, d.box))
    if not good:
        return []
    boxes, scores = torch.tensor([d.box for d in good]), torch.tensor([d.score for d in good])
    return [good[i] for i in sorted(nms(boxes, scores, nms_iou).tolist())]


def batches(indices: Sequence[int], buckets: Mapping[int, Any], size: int) -> Iterator[list[int]]:
    """Neighbours among `indices` of one bucket, at most `size` together."""
    for _, members in groupby(indices, key=lambda i: buckets[i]):
        same = list(members)
        yield from (same[start : start + size] for start in range(0, len(same), size))


def given_boxes(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The boxes that a row brought along, best first, without those whose phrase did not survive the cleaning."""
    numbers = {(chunk["start"], chunk["end"]): n for n, chunk in enumerate(row["noun_chunks"])}
    found = []
    for given in row["given_noun_chunks"]:
        span = move_span(row["caption_original"] or "", row["caption"], given["start"], given["end"])
        if span in numbers:
            found.append(pack(numbers[span], corners(given), given["score"]))
    return sorted(found, key=lambda box: -box["score"])


def pack(phrase: int, box: tuple[float, float, float, float], score: float) -> dict[str, Any]:
    """schemas.rows.BOX, corners cut to the image."""
    named = zip(("x_min", "y_min", "x_max", "y_max"), box, strict=True)
    return {"phrase": phrase, **{name: min(max(value, 0.0), 1.0) for name, value in named}, "score": score}
