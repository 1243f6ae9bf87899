"""COCO's average precision on boxes with closed forms, and against a plain implementation of its definition."""

import numpy as np
import pytest

from trainer.evaluation.metrics.detection import RECALLS, THRESHOLDS, Floats, TrueBoxes, average_precisions, iou


def true_boxes(
    image: list[int], box: list[list[float]], label: list[int] | None = None, crowd: list[bool] | None = None
) -> TrueBoxes:
    return TrueBoxes(
        image=np.array(image),
        box=np.array(box, float).reshape(-1, 4),
        label=np.array(label or [0] * len(image)),
        crowd=np.array(crowd or [False] * len(image)),
    )


def detect(true: TrueBoxes, scores: list[list[float]]) -> Floats:
    """Average precisions with the true boxes as detections."""
    return average_precisions(true.image, true.box, np.array(scores, float), true)


def test_iou_is_one_for_equal_boxes_and_the_covered_share_for_crowds() -> None:
    boxes = np.array([[0.1, 0.2, 10.3, 7.7], [5, 5, 10, 10], [50, 50, 1, 1]])
    found = iou(boxes, boxes, np.array([False, False, True]))
    assert found.diagonal().tolist() == [1, 1, 1]
    assert found[0, 2] == 0
    assert iou(boxes[:1], np.array([[0.1, 0.2, 100, 100.0]]), np.array([True]))[0, 0] == pytest.approx(1)
    assert iou(np.array([[0, 0, 2, 2.0]]), np.array([[1, 1, 2, 2.0]]), np.array([False]))[0, 0] == pytest.approx(1 / 7)


def test_right_scores_give_one_at_every_threshold() -> None:
    true = true_boxes([0, 0, 1], [[0, 0, 9, 9], [20, 20, 9, 9], [0, 0, 5, 5]], [0, 1, 0])
    found = detect(true, [[0.9, 0.1], [0.1, 0.9], [0.8, 0.2]])
    assert (found == 1).all()


def test_wrong_detection_above_all_boxes_halves_the_precision() -> None:
    true = true_boxes([0, 1], [[0, 0, 9, 9], [0, 0, 9, 9]], [0, 1])
    found = detect(true, [[0.5, 0.0], [0.9, 0.1]])
    assert found[0] == pytest.approx(np.full(10, 1 / 2))


def test_precision_is_interpolated_at_101_recalls() -> None:
    true = true_boxes([0, 1, 2], [[0, 0, 9, 9]] * 3, [0, 1, 0])
    found = detect(true, [[0.9, 0], [0.5, 1], [0.1, 0]])
    # Right, wrong, right: precision 1 up to recall 1/2 (51 of 101 points), then 2/3.
    assert found[0] == pytest.approx(np.full(10, (51 + 50 * 2 / 3) / 101))


def test_overlapping_boxes_of_one_class_match_at_low_thresholds_only() -> None:
    # IoU 0.6: the detection of box 1 has the lower IoU with box 0, but both match their own box.
    true = true_boxes([0, 0], [[0, 0, 10, 4], [0, 0, 10, 2.4]])
    assert iou(true.box[:1], true.box[1:], np.array([False]))[0, 0] == pytest.approx(0.6)
    assert (detect(true, [[0.9], [0.8]]) == 1).all()
    # The box of another class scores highest for class 0: up to IoU 0.6 it takes the box of the right detection.
    other = true_boxes([0, 0], [[0, 0, 10, 4], [0, 0, 10, 2.4]], [0, 1])
    found = detect(other, [[0.5, 0.1], [0.9, 0.9]])[0]
    assert found == pytest.approx(np.where(THRESHOLDS < 0.601, 1.0, 0.5))


def test_crowds_make_detections_neither_right_nor_wrong() -> None:
    boxes = [[0, 0, 9, 9], [20, 20, 9, 9]]
    alone = TrueBoxes(
        image=np.zeros(1, int), box=np.array(boxes[:1], float), label=np.zeros(1, int), crowd=np.array([False])
    )
    crowded = true_boxes([0, 0], [boxes[0], [15, 15, 50, 50]], crowd=[False, True])
    image, box, scores = np.zeros(2, int), np.array(boxes, float), np.array([[0.5], [0.9]])
    assert average_precisions(image, box, scores, alone)[0] == pytest.approx(np.full(10, 0.5))
    assert average_precisions(image, box, scores, crowded)[0] == pytest.approx(np.ones(10))


def test_ties_count_against_the_model() -> None:
    true = true_boxes(list(range(10)), [[0, 0, 9, 9]] * 10, [0] + [1] * 9)
    found = detect(true, [[0.5, 0.5]] * 10)
    assert found[0] == pytest.approx(np.full(10, 0.1))
    assert found[1] == pytest.approx(np.full(10, 0.9))


def test_scores_of_minus_infinity_are_no_detections_and_classes_without_boxes_have_no_value() -> None:
    true = true_boxes([0, 1], [[0, 0, 9, 9]] * 2)
    found = detect(true, [[0.5, -np.inf], [-np.inf, 0.5]])
    assert found[0] == pytest.approx(np.full(10, 51 / 101))
    assert np.isnan(found[1]).all()


def plain_average_precision(
    image: list[int], box: Floats, scores: Floats, true: TrueBoxes, label: int, threshold: float
) -> float:
    """COCO's definition, one detection after another over the whole set."""
    taken: set[int] = set()
    hits, precision_at = 0, []
    boxes = np.flatnonzero(true.label == label)
    for rank, row in enumerate(np.argsort(-scores[:, label]), start=1):
        overlap = {
            int(g): iou(box[row : row + 1], true.box[g : g + 1], np.array([False]))[0, 0]
            for g in boxes
            if true.image[g] == image[row] and g not in taken
        }
        best = max(overlap, key=lambda g: overlap[g], default=None)
        if best is not None and overlap[best] >= threshold - 1e-10:
            taken.add(best)
            hits += 1
        precision_at.append((hits / len(boxes), hits / rank))
    return float(np.mean([max((p for r, p in precision_at if r >= recall), default=0.0) for recall in RECALLS]))


def test_crowded_images_agree_with_a_plain_implementation() -> None:
    rng = np.random.default_rng(0)
    n = 120
    image = np.sort(rng.integers(0, 6, n))
    box = np.concatenate([rng.uniform(0, 12, (n, 2)), rng.uniform(15, 25, (n, 2))], 1)
    true = true_boxes(image.tolist(), box.tolist(), rng.integers(0, 3, n).tolist())
    scores = rng.random((n, 3)) + np.eye(3)[true.label] * 0.3
    order = rng.permutation(n)
    found = average_precisions(image[order], box[order], scores[order], true)
    for label in range(3):
        for t in (0, 3, 5, 8, 9):
            plain = plain_average_precision(
                image[order].tolist(), box[order], scores[order], true, label, THRESHOLDS[t]
            )
            assert found[label, t] == pytest.approx(plain)
    assert not np.allclose(found[:, 0], found[:, 9])
