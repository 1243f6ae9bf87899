"""Tests of the choice of thresholds."""

import pytest

from demo.eval import ScoredImage, choose_thresholds, grid, grid_table
from demo.world.truth import Prediction, TruePhrase, Truth, tally

BOXES = ((0.0, 0.0, 0.2, 0.2), (0.5, 0.5, 0.9, 0.9))
FAR = (0.0, 0.8, 0.1, 0.9)


def image(*found: tuple[int, tuple[float, float, float, float], float, float]) -> ScoredImage:
    """Build an image of a dog and a cat with boxes (phrase, xyxy, score, cosine)."""
    spans = ((0, 5), (10, 15))
    phrases = tuple(
        TruePhrase(start=a, end=b, noun_start=a + 2, noun_end=b, kind="object", boxes=(box,))
        for (a, b), box in zip(spans, BOXES, strict=True)
    )
    return ScoredImage(
        truth=Truth(seed=0, style="fluent", caption="a dog and a cat", phrases=phrases),
        boxes=tuple(Prediction(start=spans[p][0], end=spans[p][1], box=box, score=s) for p, box, s, _ in found),
        cosines=tuple(cosine for *_, cosine in found),
    )


IMAGES = [
    image((0, BOXES[0], 0.9, 0.5), (1, BOXES[1], 0.5, 0.4), (1, FAR, 0.6, 0.1)),
    image((0, BOXES[0], 0.3, 0.6), (0, FAR, 0.7, 0.3)),
]


def test_grid_equals_filtering_and_counting_for_each_pair_of_thresholds() -> None:
    for point in grid(IMAGES):
        counts = [
            tally(
                [
                    box
                    for box, cosine in zip(img.boxes, img.cosines, strict=True)
                    if box.score >= point.min_score and cosine >= point.min_cosine
                ],
                img.truth,
            )
            for img in IMAGES
        ]
        total = counts[0] + counts[1]
        assert (point.precision, point.recall) == pytest.approx((total.precision, total.recall))


def test_chosen_thresholds_have_the_highest_recall_at_the_required_precision() -> None:
    chosen = choose_thresholds({"all": IMAGES}, {"all": 1.0})["all"]
    assert (chosen.precision, chosen.recall) == (1.0, 0.75)
    assert chosen.min_score <= 0.3
    assert 0.3 < chosen.min_cosine <= 0.4


def test_smallest_shortfall_is_chosen_if_no_pair_reaches_the_required_precision() -> None:
    all_wrong = [image((0, FAR, 0.9, 0.9))]
    chosen = choose_thresholds({"good": IMAGES, "bad": all_wrong}, {"good": 1.0, "bad": 0.9})
    assert chosen["bad"].precision == 0.0
    assert chosen["good"].precision == 1.0
    assert (chosen["good"].min_score, chosen["good"].min_cosine) == (chosen["bad"].min_score, chosen["bad"].min_cosine)


def test_grid_table_has_a_cell_per_pair_of_thresholds() -> None:
    lines = grid_table(IMAGES)
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].split("|")[2].strip() == "0.600 / 0.750"  # score 0.30, no CLIP filter: 3 of 5 boxes are correct
