"""The measurement of boxes on scenes, counted by hand."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from benchmarks.boxes import SEEDS, count, count_expressions, precision_and_recall, recall, scene_of_one_kind
from benchmarks.phrases import intervals
from demo.world.captions import Phrase
from demo.world.scenes import Object, Scene

DOG, CAT, BIRD = (0.0, 0.0, 40.0, 40.0), (60.0, 0.0, 100.0, 40.0), (0.0, 60.0, 40.0, 100.0)
CAPTION = "a dog, a cat and a bird"
CHUNKS = [{"start": 0, "end": 5, "removed": None}, {"start": 7, "end": 12, "removed": None}]


def scene() -> Scene:
    spans = ((0, 5, 2), (7, 12, 9), (17, 23, 19))
    phrases = tuple(
        Phrase(start=s, end=e, noun_start=n, noun_end=e, kind="count" if i == 1 else "object", objects=(i,))
        for i, (s, e, n) in enumerate(spans)
    )
    names = zip(("dog", "cat", "owl"), (DOG, CAT, BIRD), strict=True)
    objects = tuple(Object(concept=name, colour=None, box=box) for name, box in names)
    image = np.zeros((100, 100, 3), np.uint8)
    return Scene(seed=0, style="fluent", image=image, objects=objects, caption=CAPTION, phrases=phrases)


def row(*found: tuple[int, tuple[float, ...], str | None]) -> dict[str, Any]:
    sides = ("x_min", "y_min", "x_max", "y_max")
    boxes = [
        {"phrase": chunk, "score": 0.9 - 0.1 * i, **dict(zip(sides, (edge / 100 for edge in box), strict=True))}
        for i, (chunk, box, _) in enumerate(found)
    ]
    scores = [{"removed": removed, "clip_cosine": 0.3} for _, _, removed in found]
    return {"caption": CAPTION, "noun_chunks": CHUNKS, "boxes": boxes, "has_expression": None, "box_scores": scores}


def test_losses_and_false_boxes_are_counted_by_cause() -> None:
    counts = count(scene(), row((0, DOG, None), (0, DOG, None), (1, DOG, None), (1, CAT, "low_score")))
    assert (counts["true"], counts["predicted"], counts["right"]) == (3, 3, 1)
    assert counts["false: second box of an object"] == counts["false: another object"] == 1
    assert counts["lost: score below the threshold"] == counts["lost: no phrase"] == 1
    assert (counts["true: object"], counts["right: object"], counts["right: count"]) == (2, 1, 0)


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        ((1, CAT, "low_clip_score"), "CLIPScore below the threshold"),
        ((1, CAT, "box_too_small"), "box too small"),
        ((1, DOG, "low_score"), "no box at IoU 0.5"),
    ],
)
def test_loss_has_the_cause_of_the_best_box(found: tuple[int, tuple[float, ...], str], cause: str) -> None:
    assert count(scene(), row((0, DOG, None), found))[f"lost: {cause}"] == 1


def test_removed_phrase_is_a_cause() -> None:
    data = row((0, DOG, None))
    data["noun_chunks"] = [CHUNKS[0], {**CHUNKS[1], "removed": "relational"}]
    assert count(scene(), data)["lost: phrase removed: relational"] == 1


def test_best_box_of_a_longer_expression_is_compared_with_the_object_of_its_chunk() -> None:
    expressions = [{"chunk": 0, "start": 0, "end": 12}, {"chunk": 1, "start": 7, "end": 12}]
    for found, right in (((0, DOG, None), 1), ((0, CAT, None), 0)):
        data = row(found, (0, DOG, None), (1, CAT, None)) | {"ref_exps": expressions}
        counts = count_expressions("colour", scene(), data)
        assert (counts["boxes: best colour"], counts["right: best colour"]) == (1, right)
    assert not count_expressions("colour", scene(), row((0, DOG, None)) | {"ref_exps": []})


def test_caption_of_several_objects_of_one_kind_names_their_positions() -> None:
    found = [part for seed in SEEDS["dev"][:12] if (part := scene_of_one_kind(seed, "openmoji"))]
    assert {kind for kind, _ in found} == {"colour", "position"}
    for kind, drawn in found:
        nouns = {drawn.caption[p.noun_start : p.noun_end] for p in drawn.phrases}
        assert len(nouns) == 1 < len(drawn.phrases)
        colours = {drawn.objects[p.objects[0]].colour for p in drawn.phrases}
        assert (len(colours) > 1) == (kind == "colour")


def test_interval_encloses_the_figure() -> None:
    counts = [Counter({"right": i % 3 != 0, "predicted": 1, "true": 2}) for i in range(60)]
    bounds = intervals(precision_and_recall, counts, 200)
    assert bounds["precision"][0] < 2 / 3 < bounds["precision"][1]
    assert bounds["recall"][0] < 1 / 3 < bounds["recall"][1]
    assert bounds["precision"] == (2 * bounds["recall"][0], 2 * bounds["recall"][1])  # from the same samples
    assert recall(Counter()) == 0.0
