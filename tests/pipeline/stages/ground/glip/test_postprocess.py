"""Selection of boxes from the network's predictions."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pipeline.stages.ground.glip.config import DetectConfig
from pipeline.stages.ground.glip.head import level_anchors
from pipeline.stages.ground.glip.model import GlipOutput, best_per_level, class_probability, detect

CONFIG = DetectConfig(min_class_prob=0.05)
CPU = torch.device("cpu")


def output_of(logits: Tensor) -> GlipOutput:
    """Predictions for one image on levels of 4 x 4 and 2 x 2 cells; each box is its anchor."""
    anchors = [level_anchors((4, 4), 8, 2.0, CPU), level_anchors((2, 2), 16, 2.0, CPU)]
    cells = sum(len(level) for level in anchors)
    return GlipOutput(
        token_logits=logits[None], deltas=torch.zeros(1, cells, 4), centerness=torch.zeros(1, cells), anchors=anchors
    )


def logits_with(values: dict[tuple[int, int], float]) -> Tensor:
    logits = torch.full((20, 4), -20.0)
    for (cell, token), value in values.items():
        logits[cell, token] = value
    return logits


LABELS = torch.tensor([[False, True, False, False], [False, False, True, True]])


def test_the_probability_of_a_label_is_the_mean_over_its_word_pieces() -> None:
    probability = class_probability(torch.tensor([[9.0, 0.0, 0.0, -50.0]]), LABELS)
    assert probability[0].tolist() == pytest.approx([0.5, 0.25])


def test_the_score_is_the_root_of_probability_and_centerness() -> None:
    found = detect(output_of(logits_with({(5, 1): 0.0})), 0, LABELS, (32, 32), CONFIG)
    assert found.scores.tolist() == pytest.approx([0.5])
    assert found.labels.tolist() == [0]
    assert found.boxes.tolist() == [[4, 4, 19, 19]]


def test_the_threshold_applies_to_the_probability_without_centerness() -> None:
    logits = logits_with({(0, 1): -2.9, (15, 1): -3.0})  # sigmoid: 0.052 and 0.047
    assert len(detect(output_of(logits), 0, LABELS, (32, 32), CONFIG).scores) == 1


def test_boxes_are_clipped_to_the_unpadded_image() -> None:
    found = detect(output_of(logits_with({(0, 1): 0.0, (3, 1): 0.0})), 0, LABELS, (30, 20), CONFIG)
    assert sorted(found.boxes.tolist()) == [[0, 0, 11, 11], [20, 0, 29, 11]]


def test_only_boxes_of_the_same_label_suppress_each_other() -> None:
    same_anchor = {(5, 1): 2.0, (5, 2): 1.0, (5, 3): 1.0}
    found = detect(output_of(logits_with(same_anchor)), 0, LABELS, (32, 32), CONFIG)
    assert found.labels.tolist() == [0, 1]
    strict = replace(CONFIG, nms_iou=0.3)
    neighbours = {(5, 1): 2.0, (6, 1): 1.0}  # two anchors of 16 px, 8 apart: IoU 1/3
    assert len(detect(output_of(logits_with(neighbours)), 0, LABELS, (32, 32), strict).scores) == 1
    assert len(detect(output_of(logits_with(neighbours)), 0, LABELS, (32, 32), CONFIG).scores) == 2


def test_boxes_with_the_same_score_as_the_last_one_are_kept() -> None:
    logits = logits_with({(0, 1): 2.0, (3, 1): 1.0, (12, 1): 1.0})
    assert len(detect(output_of(logits), 0, LABELS, (32, 32), replace(CONFIG, max_boxes=2)).scores) == 3


def test_the_best_candidates_are_selected_per_level() -> None:
    cell = torch.tensor([0, 1, 2, 16, 17])
    scores = torch.tensor([0.1, 0.9, 0.5, 0.3, 0.2])
    assert sorted(best_per_level(cell, scores, [16, 4], 2).tolist()) == [1, 2, 3, 4]
    assert best_per_level(cell[:0], scores[:0], [16, 4], 2).tolist() == []
