"""The verb `quality` on a small output."""

import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pipeline.commands import quality
from pipeline.explore.marks import COLUMNS, MARK, line_of, safe
from pipeline.explore.quality.boxes import read_rows

Printed = pytest.CaptureFixture[str]
Lines = list[list[str]]
KEPT_ONLY = (None,)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: object) -> int:
    return quality.main(list(map(str, arguments)))


def write(path: Path, lines: Lines) -> str:
    """Write a CSV of marks; return the argument that names it."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *lines])
    return f"marks={path}"


def marks_of(
    output: str, answers: Sequence[str], removals: Sequence[str | None] = KEPT_ONLY, min_score: float = 0.0
) -> Lines:
    """The marks of the first boxes that were removed for these reasons, None for kept ones."""
    found = [(row, box) for row in read_rows(output) for box in row.boxes
             if box.removed in removals and box.score >= min_score]  # fmt: skip
    assert len(found) >= len(answers)
    return [line_of(row, box, mark) for (row, box), mark in zip(found, answers, strict=False)]


def test_calibration_draws_the_curve_and_names_settings(
    folder: Path, output: str, phrases_file: Path, capsys: Printed
) -> None:
    assert run(output, f"known={phrases_file}", "precision=0.95") == 0
    text = capsys.readouterr().out
    assert re.search(r"score\.min_score=0\.\d+ score\.min_clip_score=\d", text)
    assert (folder / "calibration.png").read_bytes().startswith(b"\x89PNG")
    rows = [line.split() for line in text.splitlines() if re.match(r" +0\.\d\d +\d+ ", line)]
    recalls = [float(row[-1]) for row in rows if "score" in text][:3]
    assert recalls == sorted(recalls, reverse=True)
    # The boxes of this output are the true boxes, moved a little: none is wrong, none is found twice.
    assert {row[2] for row in rows} == {"1.000"}
    # Rows without boxes count as well.
    n_objects = int(re.search(r"(\d+) objects to be found", text)[1])  # type: ignore[index]
    names = {row.url.rsplit("/", 1)[1] for row in read_rows(output) if row.url}
    truth = json.loads(phrases_file.read_text())
    assert n_objects == sum(len(phrase["boxes"]) for name in names for phrase in truth[name]["phrases"])
    (folder / "calibration.png").unlink()
    assert run(output, f"known={phrases_file}", "precision=0.95", "plot=null") == 0
    assert text == capsys.readouterr().out + "curve: calibration.png\n"
    assert not (folder / "calibration.png").exists()


def test_precision_out_of_reach_is_said(folder: Path, output: str, capsys: Printed) -> None:
    nothing = {"images": [{"id": str(n), "width": 10, "height": 10} for n in range(24)], "categories": [{"id": 1, "name": "a"}],
               "annotations": [{"image_id": str(n), "category_id": 1, "bbox": [0, 0, 1, 1]} for n in range(24)]}  # fmt: skip
    (folder / "coco.json").write_text(json.dumps(nothing))
    assert run(output, "known=coco.json", "any_phrase=true", "plot=null") == 2  # URLs name N.jpg, ids are not set
    for image in nothing["images"]:
        image["file_name"] = f"{image['id']}.jpg"
    (folder / "coco.json").write_text(json.dumps(nothing))
    assert run(output, "known=coco.json", "any_phrase=true", "plot=null") == 0
    assert "No thresholds reach a precision of 0.90" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of known=FILE and marks=FILE"),
        (["known=other.json", "marks=none.csv"], "give one of known=FILE and marks=FILE"),
        (["known=none.json"], "none.json cannot be read"),
        (["known=other.json"], "has known objects in other.json"),
        (["known=other.json", "precision=2"], "precision is 2.0"),
        (["known=none.json", "plot=x.txt"], "plot is x.txt; give a file that ends with .png"),
        (["known=none.json", "plot=."], "plot is .; give a file that ends with .png"),
        (["known=none.json", "plot=no/x.png"], "the folder no of plot= does not exist"),
        (["marks=none.csv"], "none.csv has no marks"),
    ],
)
def test_bad_arguments_end_in_one_line(
    folder: Path, output: str, arguments: list[str], message: str, capsys: Printed
) -> None:
    (folder / "other.json").write_text('{"x": {"phrases": []}}')
    assert run(output, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_folder_without_shards_is_reported(folder: Path, capsys: Printed) -> None:
    assert run(folder / "empty", "known=x.json") == 2
    (folder / "x.json").write_text('{"x": {"phrases": []}}')
    assert run(folder / "empty", "known=x.json") == 2
    assert "empty does not exist" in capsys.readouterr().err


def test_marks_give_precision_with_interval_and_feed_the_calibration(
    folder: Path, output: str, capsys: Printed
) -> None:
    lines = marks_of(output, ["right"] * 6 + ["wrong", "wrong", "unsure"])
    lines += marks_of(output, ["wrong"], ["low_clip_score"])
    assert run(output, write(folder / "marks.csv", lines), "precision=0.6") == 0
    text = capsys.readouterr().out
    assert "precision 0.750 [0.409, 0.929], 6 of 8 right" in text
    assert "removed boxes precision 0.000" in text
    assert "Highest recall at a precision of 0.60: score.min_score=" in text
    assert "right boxes kept" in text


def test_marks_speak_about_kept_boxes_from_the_lowest_marked_score_on(
    folder: Path, output: str, capsys: Printed
) -> None:
    lines = marks_of(output, ["right"] * 10, min_score=0.8)
    assert run(output, write(folder / "marks.csv", lines)) == 0
    text = capsys.readouterr().out
    first = text.partition("\n\n")[2].partition("\n\n")[0]
    advised = re.search(r"score\.min_score=([0-9.]+) score\.min_clip_score=([0-9.]+)", text)
    assert advised is not None
    scores = [float(advised[1]), *(float(line.split()[0]) for line in first.splitlines()[2:])]
    assert min(scores) >= 0.8
    assert float(advised[2]) >= 0.65  # that of the job


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[0].__setitem__(MARK, "maybe"), "is marked as 'maybe'"),
        (lambda lines: lines[1].__setitem__(1, "x"), "is not a CSV of marks"),
        (lambda lines: lines[0].__setitem__(2, "a unicorn"), "give the output whose boxes were marked"),
        (lambda lines: lines[0].__setitem__(7, "0.0101"), "give the output whose boxes were marked"),
        (lambda lines: lines.append([*lines[0][:MARK], "wrong", *lines[0][MARK + 1 :]]), "as right and as wrong"),
        (lambda lines: [line.__setitem__(MARK, "unsure") for line in lines], "has no marks"),
    ],
)
def test_bad_marks_are_reported_in_one_line(
    folder: Path, output: str, change: Callable[[Lines], object], message: str, capsys: Printed
) -> None:
    lines = marks_of(output, ["right"] * 3)
    change(lines)
    assert run(output, write(folder / "marks.csv", lines)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_keys_without_zeros_are_found(folder: Path, output: str, capsys: Printed) -> None:
    argument = write(folder / "marks.csv", marks_of(output, ["right"] * 3))
    form = folder / "marks.csv"
    form.write_text("\ufeff" + re.sub(r"(?m)^0+(?=\d)", "", form.read_text()), encoding="utf-8")
    assert run(output, argument, "plot=null") == 0
    assert "3 of 3 right" in capsys.readouterr().out


def test_texts_cannot_become_formulas() -> None:
    assert safe('=HYPERLINK("x")') == '\'=HYPERLINK("x")'
    assert safe("a dog; 3 cats") == "a dog; 3 cats"
    hostile = "a dog;=cmd|' /c calc'!A0"
    assert safe(hostile) == "a dog;'=cmd|' /c calc'!A0"
    assert safe(safe(hostile)) == safe(hostile)
