"""Classification of ground-truth boxes of COCO, measured as detection (HyCoCLIP, table 3).

HyCoCLIP states neither the vocabulary nor the prompts nor the calibration of scores. Metrics are given for the 17 novel
categories alone, and for the 65 categories of which they are a part (Bansal et al. 2018); scores are probabilities of
the softmax with the trained temperature, so that they are comparable between images.

Shapes: m boxes, c categories, d embedding width.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from trainer.evaluation.embed import device_of
from trainer.evaluation.metrics.detection import Bools, Floats, Ints, TrueBoxes, average_precisions
from trainer.evaluation.sets.annotations import checksums, field, shown
from trainer.evaluation.task import Embedder, ImageSource, TaskOptions, TaskResult
from trainer.evaluation.tasks.classification import class_points
from trainer.evaluation.tasks.examples import (
    Problems,
    coco_images,
    coco_names,
    embed_sources,
    get_box,
    label,
    limited,
    read_kind,
    require,
)
from trainer.models.dual_encoder import DualEncoder

FILE: Final = "coco/annotations/instances_val2017.json"
IMAGES: Final = "coco/val2017"
NOVEL: Final = (5, 6, 17, 18, 21, 22, 28, 32, 36, 41, 47, 49, 61, 63, 76, 81, 87)
BASE: Final = (
    *(1, 2, 3, 4, 7, 8, 9, 15, 16, 19, 20, 23, 24, 25, 27, 31, 33, 34, 35, 38, 42, 44, 48, 50, 51, 52, 53, 54, 55),
    *(56, 57, 59, 60, 62, 65, 70, 72, 73, 74, 75, 78, 79, 80, 82, 84, 85, 86, 90),
)
"""Ids of the novel and base categories in COCO."""
PROMPTS: Final = ("a photo of a {}.", "a photo of the {}.")
"""Prompts of MERU for sets of common objects."""
BLOCK: Final = 1024


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """Boxes of the 65 categories: file, number of the image, box, category id and crowd flag, and names by id."""

    sources: Sequence[ImageSource]
    image: Ints
    box: Floats
    category: Ints
    crowd: Bools
    names: dict[int, str]
    skipped: dict[str, int]


def read_boxes(path: Path, images: Path, problems: Problems, max_examples: int = 0) -> Boxes:
    """Read the boxes of the 65 categories from a file of COCO instances, in the order of the file.

    Boxes that do not overlap their image are skipped; those of a malformed image are malformed too. Raises UserError if
    the file is malformed.
    """
    table = read_kind(path, dict)
    names = coco_names(path, table, problems)
    files = coco_images(path, table, images, problems, "width", "height")
    if missing := sorted({*NOVEL, *BASE} - names.keys()):
        raise UserError(f"{path} lacks the category {missing[0]}; use the official file instances_val2017.json")
    numbers = {image: number for number, image in enumerate(sorted(files))}  # ids may exceed 64 bits
    skipped: Counter[str] = Counter()

    def read(row: Any) -> tuple[ImageSource, int, tuple[float, ...], int, bool] | None:
        where = f"{path}, annotation {label(row)}"
        category, image = field(row, "category_id", int, where), field(row, "image_id", int, where)
        if category not in NOVEL and category not in BASE:
            return None
        if image not in files:
            raise UserError(f"{where} names image {image}, which the file does not list; download the file again")
        box, crowd = get_box(row.get("bbox"), where), field({"iscrowd": 0} | row, "iscrowd", int, where)
        if crowd not in (0, 1):
            raise UserError(f"{where}: 'iscrowd' is {shown(crowd)}, not 0 or 1; correct the entry")
        source, size = files[image]
        if not is_visible(box, *size):
            skipped["box without area"] += 1
            return None
        return replace(source, box=box), numbers[image], box, category, bool(crowd)

    rows = problems.entries(path, field(table, "annotations", list, str(path)), read)
    chosen = limited([row for row in rows if row is not None], max_examples)
    return Boxes(
        sources=[row[0] for row in chosen],
        image=np.array([row[1] for row in chosen], np.int64),
        box=np.array([row[2] for row in chosen], np.float64).reshape(-1, 4),
        category=np.array([row[3] for row in chosen], np.int64),
        crowd=np.array([row[4] for row in chosen], bool),
        names=names,
        skipped=dict(skipped),
    )


def is_visible(box: tuple[float, float, float, float], image_width: int, image_height: int) -> bool:
    """Return True if the box has an area within the image."""
    left, top, width, height = box
    return min(left + width, image_width) > max(left, 0) and min(top + height, image_height) > max(top, 0)


def with_context(source: ImageSource, factor: float) -> ImageSource:
    """The box with its sides multiplied by `factor` around its center. It is cut at the image when it is read."""
    assert source.box is not None
    left, top, width, height = source.box
    margin_x, margin_y = (side * (factor - 1) / 2 for side in (width, height))
    return replace(source, box=(left - margin_x, top - margin_y, width + 2 * margin_x, height + 2 * margin_y))


@torch.inference_mode()
def similarities(embedder: Embedder, features: Tensor, names: Sequence[str]) -> Tensor:
    """Similarities [m c] in float64, divided by the trained temperature, of features [m d] and category names."""
    classes = class_points(embedder, names, PROMPTS)
    parts = [logits(embedder.model, part, classes) for part in features.split(BLOCK)]
    return torch.cat(parts) if parts else torch.zeros(0, len(names), dtype=torch.float64)


def logits(model: DualEncoder, features: Tensor, classes: Tensor) -> Tensor:
    """Similarities [m c] divided by the temperature, from features [m d] and lifted classes [*k c d]."""
    points = model.lift_image(features.to(device_of(model)))
    return model.directed_similarity(points, classes, "image").cpu().double() * model.pair_scale().item()


def vocabulary_precisions(
    boxes: Boxes, rows: Tensor, scores: Tensor, vocabulary: Sequence[int], best_only: bool = False
) -> Floats:
    """Average precision [c t] of a vocabulary of category ids, in ascending order, and of the thresholds of the IoU.

    `rows` [m] are the boxes that are classified, and `scores` [m v] their logits for all 65 categories, in ascending
    order of ids. Boxes of other categories are left out. Each box is a detection of each category, or with `best_only`
    of the best one; the score is the log probability among the vocabulary.
    """
    categories = sorted((*NOVEL, *BASE))
    proposed = np.isin(boxes.category[rows.numpy()], vocabulary)
    columns = [categories.index(category) for category in vocabulary]
    values = scores[torch.from_numpy(proposed)][:, columns].log_softmax(1)
    if best_only:
        values = values.masked_fill(values < values.amax(1, keepdim=True), -torch.inf)
    detections = rows.numpy()[proposed]
    true = np.union1d(detections, np.flatnonzero(boxes.crowd & np.isin(boxes.category, vocabulary)))
    return average_precisions(
        boxes.image[detections],
        boxes.box[detections],
        values.numpy(),
        TrueBoxes(
            image=boxes.image[true],
            box=boxes.box[true],
            label=np.searchsorted(vocabulary, boxes.category[true]).astype(np.int64),
            crowd=boxes.crowd[true],
        ),
    )


def summarize(precisions: Floats, name: str) -> dict[str, float]:
    """Mean AP and AP50 over the classes of [c t] that have true boxes, if there are any."""
    found = precisions[~np.isnan(precisions).any(1)]
    return {f"{name}AP": float(found.mean()), f"{name}AP50": float(found[:, 0].mean())} if len(found) else {}


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Classify the boxes and measure AP.

    AP and AP50: novel categories among the 17 novel ones. base/...: 48 base categories among themselves. 65/novel/...,
    65/base/... and 65/all/...: among all 65. The same with best/ in front: one detection per box, its best category.
    """
    require(root, FILE, IMAGES)
    problems = Problems()
    boxes = read_boxes(root / FILE, root / IMAGES, problems, options.max_examples)
    proposals = torch.from_numpy(np.flatnonzero(~boxes.crowd))
    crops = [with_context(boxes.sources[i], options.box_context) for i in proposals.tolist()]
    images = embed_sources(embedder, crops, "squeeze")
    rows = proposals[images.usable]
    categories = sorted((*NOVEL, *BASE))
    features = images.features[images.rows[images.usable]]
    scores = similarities(embedder, features, [boxes.names[category] for category in categories])
    novel = np.isin(categories, NOVEL)
    metrics: dict[str, float] = {}
    by_class: dict[str, float] = {}
    for prefix, best_only in (("", False), ("best/", True)):
        alone = vocabulary_precisions(boxes, rows, scores, NOVEL, best_only)
        metrics |= summarize(alone, prefix)
        metrics |= summarize(vocabulary_precisions(boxes, rows, scores, BASE, best_only), f"{prefix}base/")
        together = vocabulary_precisions(boxes, rows, scores, categories, best_only)
        for name, part in (("novel", together[novel]), ("base", together[~novel]), ("all", together)):
            metrics |= summarize(part, f"{prefix}65/{name}/")
        if not best_only:
            by_class = {boxes.names[c]: float(row.mean()) for c, row in zip(NOVEL, alone, strict=True)}
    return TaskResult(
        metrics=metrics,
        rules={
            "score": "softmax of the similarity with the trained temperature",
            "image": "box, squeezed to a square"
            + (f", with sides of {options.box_context:g} times the box" if options.box_context != 1 else ""),
            "prompts": " | ".join(PROMPTS),
            "detections": "all categories of each box; best/: the best one",
            "ties": "wrong detections first",
        },
        n_used=len(rows),
        skipped=boxes.skipped
        | problems.skipped
        | images.skipped()
        | ({"crowd": n} if (n := int(boxes.crowd.sum())) else {}),
        checksums=checksums(root, root / FILE),
        details={
            **problems.details(),
            "AP_by_category": {name: value for name, value in by_class.items() if value == value},
        },
    )
