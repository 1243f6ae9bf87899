"""Precision and recall at each threshold, counted by hand."""

import math

import pytest

from pipeline.explore.quality.boxes import FoundBox, FoundRow
from pipeline.explore.quality.curve import Judged, judge, n_expected, recommended, score_points, wilson
from pipeline.explore.quality.known import KnownObject

LEFT, RIGHT, FAR = (0.0, 0.0, 0.4, 0.4), (0.6, 0.0, 1.0, 0.4), (0.0, 0.6, 0.3, 0.9)
CAPTION = "a dog and a cat"
DOG, CAT = (0, 5), (10, 15)


def box(
    number: int,
    span: tuple[int, int],
    corners: tuple[float, float, float, float],
    score: float,
    clip: float | None = 1.0,
    removed: str | None = None,
) -> FoundBox:
    return FoundBox(
        number=number, start=span[0], end=span[1], corners=corners, score=score, clip_score=clip, removed=removed
    )


def row(*boxes: FoundBox) -> FoundRow:
    return FoundRow(key="000000000001", id="a", url=None, caption=CAPTION, boxes=boxes)


KNOWN = [KnownObject(corners=LEFT, span=DOG), KnownObject(corners=RIGHT, span=CAT)]


def test_box_of_another_phrase_is_wrong() -> None:
    judged = judge(row(box(0, DOG, RIGHT, 0.9), box(1, CAT, RIGHT, 0.8)), KNOWN)
    assert [(item.score, item.is_right) for item in judged] == [(0.9, False), (0.8, True)]


def test_second_box_of_an_object_is_wrong() -> None:
    judged = judge(row(box(0, DOG, LEFT, 0.5), box(1, DOG, LEFT, 0.9)), KNOWN)
    assert [(item.score, item.is_right) for item in judged] == [(0.9, True), (0.5, False)]


def test_clip_threshold_removes_boxes_before_they_are_matched() -> None:
    boxes = row(box(0, DOG, LEFT, 0.9, 0.2), box(1, DOG, LEFT, 0.5, 1.1), box(2, CAT, RIGHT, 0.4, None))
    assert [item.is_right for item in judge(boxes, KNOWN)] == [True, False, True]
    assert [(item.score, item.is_right) for item in judge(boxes, KNOWN, 0.5)] == [(0.5, True)]


def test_small_boxes_are_left_out() -> None:
    assert judge(row(box(0, DOG, LEFT, 0.9, None, "box_too_small")), KNOWN) == []


def test_box_in_a_crowd_is_neither_right_nor_wrong() -> None:
    crowd = [KnownObject(corners=(0.0, 0.5, 1.0, 1.0), name="cat", is_crowd=True)]
    assert judge(row(box(0, CAT, FAR, 0.9)), [*KNOWN, *crowd]) == []
    assert len(judge(row(box(0, CAT, FAR, 0.9)), KNOWN)) == 1
    assert n_expected(row(), [*KNOWN, *crowd]) == 2


def test_named_objects_are_expected_if_the_caption_names_them() -> None:
    known = [KnownObject(corners=LEFT, name=name) for name in ("dog", "bird", "cat")]
    assert n_expected(row(), known) == 2
    assert [j.is_right for j in judge(row(box(0, DOG, LEFT, 0.9)), known)] == [True]
    assert [j.is_right for j in judge(row(box(0, CAT, RIGHT, 0.9)), known)] == [False]


def test_points_count_boxes_at_or_above_the_threshold() -> None:
    judged = [Judged(score=s, clip_score=1.0, is_right=r) for s, r in ((0.9, True), (0.5, False), (0.5, True))]
    low, middle, high = score_points(judged, 4, 0.0, (0.0, 0.5, 0.95))
    assert (low.n_kept, middle.precision, middle.recall) == (3, pytest.approx(2 / 3), 0.5)
    assert (high.n_kept, math.isnan(high.precision), high.recall) == (0, True, 0.0)


def test_highest_recall_at_the_precision_is_recommended() -> None:
    judged = [Judged(score=s, clip_score=1.0, is_right=r) for s, r in ((0.9, True), (0.7, True), (0.5, False))]
    points = score_points(judged, 2, 0.0, (0.4, 0.6, 0.8))
    best = recommended(points, 0.9)
    assert best is not None
    assert (best.min_score, best.recall) == (0.6, 1.0)
    assert recommended(points, 0.6) == best
    assert recommended(score_points([Judged(score=0.9, clip_score=1, is_right=False)], 1, 0.0, (0.5,)), 0.5) is None


def test_wilson_interval_has_its_published_values() -> None:
    """Values of Newcombe 1998, table I, method 3."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(0, 0) == (0.0, 1.0)
