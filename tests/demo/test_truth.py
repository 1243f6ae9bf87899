"""Tests of precision and recall on a caption whose results can be counted by hand."""

import json

import pytest

from demo.world.scenes import make_scene
from demo.world.truth import (
    Prediction,
    Tally,
    TruePhrase,
    Truth,
    iou,
    matches,
    phrase_of,
    tally,
    truth_of,
)

#          0         1         2         3         4
#          0123456789012345678901234567890123456789012345
CAPTION = "two red dogs to the left of a cat, but no key"
DOG_BOXES = ((0.0, 0.0, 0.2, 0.2), (0.0, 0.5, 0.2, 0.7))
CAT_BOX = (0.6, 0.2, 0.9, 0.6)
TRUTH = Truth(
    seed=0,
    style="fluent",
    caption=CAPTION,
    phrases=(
        TruePhrase(start=0, end=12, noun_start=8, noun_end=12, kind="count", boxes=DOG_BOXES),
        TruePhrase(start=28, end=33, noun_start=30, noun_end=33, kind="object", boxes=(CAT_BOX,)),
        TruePhrase(start=39, end=45, noun_start=42, noun_end=45, kind="absent", boxes=()),
    ),
)


def box(start: int, end: int, xyxy: tuple[float, float, float, float], score: float = 0.5) -> Prediction:
    return Prediction(start=start, end=end, box=xyxy, score=score)


def test_iou_of_known_boxes() -> None:
    assert iou([(0, 0, 1, 1)], [(0, 0, 1, 0.5), (0.5, 0.5, 1.5, 1.5), (2, 2, 3, 3)])[0] == pytest.approx(
        [0.5, 1 / 7, 0]
    )


@pytest.mark.parametrize(
    ("boxes", "n_right", "n_absent"),
    [
        ([box(0, 12, DOG_BOXES[0]), box(0, 12, DOG_BOXES[1]), box(28, 33, CAT_BOX)], 3, 0),
        ([box(0, 12, DOG_BOXES[0], 0.9), box(0, 12, DOG_BOXES[0], 0.8)], 1, 0),  # a second box of an object
        ([box(0, 12, CAT_BOX)], 0, 0),  # of another phrase
        ([box(39, 45, CAT_BOX)], 0, 1),  # of an absent phrase
        ([box(16, 24, CAT_BOX)], 0, 0),  # of no phrase
    ],
)
def test_boxes_are_right_for_an_object_of_their_phrase_once(
    boxes: list[Prediction], n_right: int, n_absent: int
) -> None:
    counts = tally(boxes, TRUTH)
    assert (counts.n_right, counts.n_predicted, counts.n_true) == (n_right, len(boxes), 3)
    assert (counts.n_absent, counts.n_abstract) == (n_absent, 0)
    assert (counts.precision, counts.recall) == (n_right / len(boxes), n_right / 3)


def test_box_with_the_higher_score_is_matched_first() -> None:
    found = matches([box(28, 33, CAT_BOX, 0.2), box(28, 33, CAT_BOX, 0.7)], TRUTH)
    assert [(match.prediction.score, match.is_correct) for match in found] == [(0.7, True), (0.2, False)]


def test_referring_expression_is_assigned_to_its_head() -> None:
    assert phrase_of(0, 33, TRUTH) == 0
    assert phrase_of(8, 12, TRUTH) == 0
    assert phrase_of(16, 24, TRUTH) is None  # "the left"


def test_tallies_are_summed() -> None:
    total = tally([box(28, 33, CAT_BOX)], TRUTH) + tally([], TRUTH)
    assert (total.precision, total.recall) == (1.0, pytest.approx(1 / 6))
    assert Tally().precision == Tally().recall == 0.0


def test_ground_truth_round_trips_through_json_and_scores_perfectly() -> None:
    for seed in range(20):
        truth = truth_of(make_scene(seed, "fluent"))
        assert Truth.from_json(json.loads(json.dumps(truth.to_json()))) == truth
        exact = [box(phrase.start, phrase.end, each) for phrase in truth.phrases for each in phrase.boxes]
        counts = tally(exact, truth)
        assert (counts.precision, counts.recall) == (1.0, 1.0)
        assert all(0 <= side <= 1 for prediction in exact for side in prediction.box)
