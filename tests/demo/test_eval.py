"""Tests of the evaluation: its scenes, tables, thresholds and model card."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from demo.eval import (
    BEGIN,
    CALIBRATION_SEEDS,
    CARD,
    END,
    REPORT_SEEDS,
    OperatingPoint,
    caption_table,
    filter_boxes,
    prompt_table,
    read_predictions,
    scenes,
    write_card,
    write_thresholds,
)
from demo.world.scenes import DEMO_SEEDS, TRAIN_SEEDS, list_prompt
from hypergrit_common.images import Image, decode
from pipeline.stages.ground.grounder import Detection, Grounded, Span
from pipeline.stages.ground.load import GroundConfig, score_threshold
from pipeline.stages.ground.stage import Ground
from pipeline.stages.score.filters import clip_score_threshold
from schemas.rows import CAPTIONED, PARSED

CHOSEN = OperatingPoint(min_score=0.42, min_cosine=0.3, precision=0.95, recall=0.9)


def test_seeds_of_calibration_report_demo_and_training_are_disjoint() -> None:
    ranges = [CALIBRATION_SEEDS, REPORT_SEEDS, DEMO_SEEDS, TRAIN_SEEDS]
    assert all(a.stop <= b.start or b.stop <= a.start for i, a in enumerate(ranges) for b in ranges[:i])


def test_tables_have_the_schema_of_their_stage_and_the_images_of_the_scenes() -> None:
    items = scenes("fluent", REPORT_SEEDS, 2)
    table = caption_table(items)
    assert table.schema.equals(CAPTIONED)
    assert table["caption"].to_pylist() == [scene.caption for scene in items]
    assert decode(table["image"][0].as_py()).shape == items[0].image.shape
    assert prompt_table([list_prompt(scene) for scene in items]).schema.equals(PARSED)


class ConstantGrounder:
    """A grounder that returns the same boxes for every image."""

    def __init__(self, found: list[Detection]) -> None:
        self.found = found

    def bucket(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def prepare(self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]) -> int:
        return len(images)

    def forward(self, prepared: int) -> int:
        return prepared

    def collect(self, output: int) -> list[Grounded]:
        return [Grounded(boxes=self.found) for _ in range(output)]


def test_predictions_have_the_spans_of_their_phrases_and_can_be_filtered_by_score() -> None:
    prompts = [list_prompt(scene) for scene in scenes("fluent", REPORT_SEEDS, 1)]
    detections = [Detection(0, (0.0, 0.0, 0.5, 0.5), 0.9), Detection(1, (0.5, 0.5, 1.0, 1.0), 0.2)]
    table = Ground(GroundConfig(floor=0.1), grounder=ConstantGrounder(detections))(prompt_table(prompts))
    (found,) = read_predictions(table)
    assert [(box.start, box.end) for box in found] == [(p.start, p.end) for p in prompts[0].phrases[:2]]
    assert [len(boxes) for boxes in read_predictions(filter_boxes(table, 0.5))] == [1]


def test_written_thresholds_are_read_by_the_pipeline(tmp_path: Path) -> None:
    for name in ("glip", "clip"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"detect": {"nms_iou": 0.6}, "format": 1}))
    write_thresholds(tmp_path, CHOSEN)
    assert score_threshold(str(tmp_path / "glip")) == 0.42
    assert clip_score_threshold(str(tmp_path / "clip")) == pytest.approx(0.75)
    assert json.loads((tmp_path / "glip" / "config.json").read_text())["detect"]["nms_iou"] == 0.6


def test_replacing_the_figures_keeps_the_text_of_the_card(tmp_path: Path) -> None:
    card = tmp_path / "card.md"
    card.write_text(f"Above\n{BEGIN}\nold\n{END}\nbelow\n")
    write_card(card, ["new"])
    assert card.read_text() == f"Above\n{BEGIN}\n\nnew\n\n{END}\nbelow\n"


def test_card_without_marker_lines_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "card.md").write_text("prose")
    with pytest.raises(ValueError, match=r"card\.md: the marker lines .* that enclose the figures are missing"):
        write_card(tmp_path / "card.md", ["new"])


def test_model_card_of_the_repository_has_the_marker_lines() -> None:
    text = CARD.read_text("utf-8")
    assert text.index(BEGIN) < text.index(END)
