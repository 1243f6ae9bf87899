"""The comparison of grounders on marked pictures."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import grounders
from benchmarks.grounders import Answer, Truth, choose_threshold, measure_boxes
from pipeline.explore.marks import COLUMNS, line_of
from pipeline.explore.quality.boxes import FoundBox, FoundRow, read_rows
from pipeline.explore.quality.curve import Judged
from pipeline.explore.quality.known import KnownObject
from tests.pipeline.explore.quality.conftest import output, phrases_file

__all__ = ["output", "phrases_file"]


def answer(*boxes: tuple[float, bool], n_true: int = 2) -> Answer:
    return Answer([Judged(score=score, clip_score=None, is_right=right) for score, right in boxes], n_true)


def test_average_precision_precision_and_recall_are_those_counted_by_hand() -> None:
    answers = [answer((0.9, True), (0.5, False)), answer((0.7, True), (0.6, False), (0.4, True))]
    found = measure_boxes(answers, 0.6)
    # right at places 1, 2 and 5 of 5, of 4 to be found
    assert found == pytest.approx({"AP": (1 + 1 + 3 / 5) / 4, "precision": 2 / 3, "recall": 2 / 4})
    assert measure_boxes([answer()], 0.5) == {"AP": 0, "precision": 0, "recall": 0}


def test_threshold_has_the_wanted_precision_or_the_best_f1() -> None:
    answers = [answer((0.92, True), (0.72, True), (0.62, False), (0.32, True), (0.22, False), n_true=3)]
    assert choose_threshold(answers, 0.75) == 0.3
    assert choose_threshold(answers, 0.99) == 0.7
    assert choose_threshold([answer((0.82, False), (0.62, True), n_true=1)], 0.9) == 0.6


def test_with_marks_only_boxes_near_marked_ones_are_judged() -> None:
    def box(number: int, *corners: float) -> FoundBox:
        return FoundBox(number=number, start=0, end=5, corners=corners, score=0.9, clip_score=None, removed=None)  # type: ignore[arg-type]

    right, wrong = (0.0, 0.0, 0.4, 0.4), (0.5, 0.5, 1.0, 1.0)
    boxes = (box(0, *right), box(1, *wrong), box(2, 0.0, 0.6, 0.3, 1.0))
    row = FoundRow(key="0", id=None, url=None, caption="a dog", boxes=boxes)
    marked = Truth([KnownObject(corners=right, span=(0, 5))], [KnownObject(corners=wrong, span=(0, 5))])
    assert [item.is_right for item in marked.answer(row).boxes] == [True, False]
    assert [item.is_right for item in Truth(marked.right).answer(row).boxes] == [True, False, False]
    assert marked.answer(row).n_true == 1


def compare(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["grounders", *arguments, "--device", "cpu"])
    grounders.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


@pytest.mark.rest
def test_grounders_are_compared_on_known_boxes_and_on_marks(
    output: str, phrases_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, base = "tests.benchmarks.whole:WholePicture", [output, "--grounders", "miniature"]
    found = compare(monkeypatch, capsys, *base, whole, "--known", str(phrases_file), "--pictures", "6")
    assert found["pictures"] == 6
    assert found["miniature"]["AP"][0] > 0.5 > found[whole]["AP"][0]
    difference, low, high = found[whole]["AP - miniature"]
    assert low <= difference <= high < 0
    kept = [(row, box) for row in read_rows(output) for box in row.boxes if box.removed is None]
    with (tmp_path / "marks.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *(line_of(row, box, "right") for row, box in kept[:8])])
    found = compare(monkeypatch, capsys, *base, "--marks", str(tmp_path / "marks.csv"))
    assert 0 < found["pictures"] <= 8
    assert found["miniature"]["recall"][0] > 0.5
