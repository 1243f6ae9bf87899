"""The verb `quality` on a small output."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Final

import pytest

from pipeline.commands import quality
from pipeline.explore.quality.boxes import Sample, read_rows
from pipeline.explore.quality.marks import safe
from tests.pipeline.report.make_output import make_tables, write_output

CLI = pytest.MonkeyPatch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: CLI) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: object) -> int:
    return quality.main(list(map(str, arguments)))


def lines_of(form: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(form.read_text(encoding="utf-8"))))


def mark(form: Path, answers: list[str]) -> None:
    rows = lines_of(form)
    for row, answer in zip(rows, answers, strict=False):
        row["mark"] = answer
    with form.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def test_calibration_draws_the_curve_and_names_settings(
    folder: Path, output: str, phrases_file: Path, capsys: pytest.CaptureFixture[str]
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
    (folder / "calibration.png").unlink()
    assert run(output, f"known={phrases_file}", "precision=0.95", "plot=null") == 0
    assert text == capsys.readouterr().out + "curve: calibration.png\n"
    assert not (folder / "calibration.png").exists()


def test_recall_counts_rows_without_boxes(
    folder: Path, output: str, phrases_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(output, f"known={phrases_file}")
    n_objects = int(re.search(r"(\d+) objects to be found", capsys.readouterr().out)[1])  # type: ignore[index]
    rows = {row.url.rsplit("/", 1)[1] for _, row in read_rows(output) if row.url}
    truth = json.loads(phrases_file.read_text())
    assert n_objects == sum(len(phrase["boxes"]) for name in rows for phrase in truth[name]["phrases"])


def test_precision_out_of_reach_is_said(folder: Path, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = {"images": [{"id": str(n), "width": 10, "height": 10} for n in range(24)], "categories": [{"id": 1, "name": "a"}],
               "annotations": [{"image_id": str(n), "category_id": 1, "bbox": [0, 0, 1, 1]} for n in range(24)]}  # fmt: skip
    (folder / "coco.json").write_text(json.dumps(nothing))
    assert run(output, "known=coco.json", "any_phrase=true") == 0
    assert "No thresholds reach a precision of 0.90" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["known=none.json"], "none.json cannot be read"),
        (["known=other.json"], "has known objects in other.json"),
        (["known=other.json", "precision=2"], "precision is 2.0"),
        (["known=other.json", "synonyms=list.json"], "list.json must hold one object of lists"),
        (["known=other.json", "synonyms=number.json"], "number.json must hold one object of lists"),
        (["known=none.json", "plot=x.txt"], "plot is x.txt; give a file that ends with .png"),
        (["known=none.json", "plot=."], "plot is .; give a file that ends with .png"),
        (["known=none.json", "plot=no/x.png"], "the folder no of plot= does not exist"),
        (["marks=none.csv"], "none.csv cannot be read"),
    ],
)
def test_bad_arguments_end_in_one_line(
    folder: Path, output: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "other.json").write_text('{"x": {"phrases": []}}')
    (folder / "list.json").write_text("[]")
    (folder / "number.json").write_text('{"dog": [1]}')
    assert run(output, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_folder_without_shards_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder / "empty") == 2
    assert "empty does not exist" in capsys.readouterr().err


def test_marks_give_precision_with_interval_and_feed_the_calibration(
    folder: Path, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(output, "boxes=10") == 0
    mark(folder / "audit.csv", ["right"] * 6 + ["no", "W", "unsure", ""])
    assert run(output, "marks=audit.csv") == 0
    assert "precision 0.750 [0.409, 0.929], 6 of 8 right" in capsys.readouterr().out
    assert run(output, "marks=audit.csv", "precision=0.7") == 0
    text = capsys.readouterr().out
    assert "8 marked boxes, 6 right" in text
    assert "right boxes kept 1.000" in text


def test_sample_depends_on_the_seed_only(folder: Path, output: str) -> None:
    forms = []
    for number, seed in enumerate((0, 0, 1)):
        run(
            output,
            "boxes=12",
            f"seed={seed}",
            f"form={number}.csv",
            f"page={number}.html",
        )
        forms.append((folder / f"{number}.csv").read_text())
    assert forms[0] == forms[1] != forms[2]


def test_removed_boxes_are_sampled_on_request(folder: Path, output: str) -> None:
    removed = {(row.key, box.number): box.removed for _, row in read_rows(output) for box in row.boxes}
    run(output, "boxes=1000", "form=kept.csv")
    run(output, "boxes=1000", "form=all.csv", "of=all", "min_score=0.5")
    kept, every = (
        {removed[row["key"], int(row["box"])] for row in lines_of(Path(name))} for name in ("kept.csv", "all.csv")
    )
    assert kept == {None}
    assert {"low_clip_score", "low_score", None} == every
    assert all(float(row["score"]) >= 0.5 for row in lines_of(Path("all.csv")))


def test_form_with_marks_is_not_overwritten(folder: Path, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "audit.csv").write_text("mine")
    assert run(output) == 2
    assert "audit.csv exists and may hold marks" in capsys.readouterr().err
    assert (folder / "audit.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["page=same.csv", "form=./same.csv"], "page and form are both ./same.csv; give two files"),
        (["form=none/form.csv"], "none/form.csv cannot be written"),
        (["page=none/page.html"], "none/page.html cannot be written"),
        (["form=folder"], "folder cannot be written"),
    ],
)
def test_page_and_form_are_written_both_or_not_at_all(
    folder: Path, output: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "folder").mkdir()
    assert run(output, *arguments) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["folder"]


def test_form_without_marks_is_written_again(folder: Path, output: str) -> None:
    assert [run(output, "boxes=3") for _ in range(2)] == [0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[0].update(mark="maybe"), "line 2: the mark is 'maybe'; write right, wrong or unsure"),
        (lambda rows: rows[1].update(box="x", mark="right"), "line 3: `box` is 'x', not a number"),
        (lambda rows: rows[0].update(phrase="a unicorn", mark="right"), "give the output that was audited"),
        (
            lambda rows: rows.append({**rows[0], "mark": "wrong"}) or rows[0].update(mark="right"),
            "another mark in line 2",
        ),
        (lambda rows: None, "has no marks"),
    ],
)
def test_bad_marks_are_reported_with_their_line(
    folder: Path, output: str, change: object, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(output, "boxes=5")
    rows = lines_of(folder / "audit.csv")
    change(rows)  # type: ignore[operator]
    with (folder / "audit.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert run(output, "marks=audit.csv") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_keys_without_zeros_are_found(folder: Path, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(output, "boxes=3")
    mark(folder / "audit.csv", ["right"] * 3)
    form = folder / "audit.csv"
    form.write_text("\ufeff" + re.sub(r"(?m)^0+(?=\d)", "", form.read_text()), encoding="utf-8")
    assert run(output, f"marks={form}") == 0
    assert "3 of 3 right" in capsys.readouterr().out


def test_texts_cannot_become_formulas() -> None:
    assert safe('=HYPERLINK("x")') == '\'=HYPERLINK("x")'
    assert safe("a dog; 3 cats") == "a dog; 3 cats"
    hostile = "a dog;=cmd|' /c calc'!A0"
    assert safe(hostile) == "a dog;'=cmd|' /c calc'!A0"
    assert safe(safe(hostile)) == safe(hostile)


COCO_OF_ALL: Final = {
    "images": [{"id": n, "file_name": f"{n}.jpg", "width": 10, "height": 10} for n in range(24)],
    "annotations": [{"image_id": n, "category_id": 1, "bbox": [0, 0, 9, 9]} for n in range(24)],
    "categories": [{"id": 1, "name": "dog"}],
}


def test_synonyms_of_no_category_are_named(folder: Path, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "coco.json").write_text(json.dumps(COCO_OF_ALL))
    (folder / "names.json").write_text('{"dog": ["puppy"], "persn": ["man"]}')
    arguments = ("known=coco.json", "synonyms=names.json", "any_phrase=true")
    assert run(output, *arguments) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert warnings == ["warning: names.json: no category of coco.json is named persn"]


def test_names_of_several_images_are_named(folder: Path, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    images = [{**image, "file_name": "same.jpg"} for image in COCO_OF_ALL["images"][:2]] + COCO_OF_ALL["images"][2:]
    (folder / "coco.json").write_text(json.dumps({**COCO_OF_ALL, "images": images}))
    assert run(output, "known=coco.json", "any_phrase=true") == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: coco.json: 2 names belong to several images and find none of them")


def test_old_form_without_the_sample_speaks_about_the_scores_it_has(
    folder: Path, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(output, "boxes=30", "of=all", "min_score=0.8")
    mark(folder / "audit.csv", ["right"] * 30)
    rows = [{k: v for k, v in row.items() if not k.startswith("sample_")} for row in lines_of(folder / "audit.csv")]
    with (folder / "audit.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert run(output, "marks=audit.csv") == 0
    assert min(recommendable(capsys.readouterr().out)) >= 0.8


def test_marks_speak_about_the_boxes_of_their_sample_only(
    folder: Path, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(output, "boxes=30", "of=all", "min_score=0.8")
    assert {(row["sample_of"], row["sample_min_score"]) for row in lines_of(folder / "audit.csv")} <= {
        ("all", "0.8"),
        ("kept", "0.8"),
    }
    mark(folder / "audit.csv", ["right"] * 30)
    assert run(output, "marks=audit.csv") == 0
    text = capsys.readouterr().out
    assert "measured: score.min_score >= 0.8" in text
    assert min(recommendable(text)) >= 0.8


def recommendable(text: str) -> list[float]:
    """Return the thresholds of the grounding score that a calibration prints: of its table and its advice."""
    first = text.partition("\n\n")[2].partition("\n\n")[0]
    advised = re.search(r"score\.min_score=([0-9.]+) score", text)
    assert advised is not None
    return [float(advised[1]), *(float(line.split()[0]) for line in first.splitlines()[2:])]


@pytest.mark.parametrize(
    ("arguments", "drawn_from"),
    [
        ([], "kept boxes\n"),
        (["min_score=0.8"], "kept boxes with a grounding score of at least 0.8. The precision says nothing about boxes below\n"),
        (["of=all", "boxes=2"], "kept and removed boxes\n"),
    ],
)  # fmt: skip
def test_precision_names_the_boxes_it_is_about(
    folder: Path,
    output: str,
    arguments: list[object],
    drawn_from: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(output, "boxes=5", *arguments)
    mark(folder / "audit.csv", ["right"] * 5)
    capsys.readouterr()
    run(output, "marks=audit.csv")
    assert capsys.readouterr().out.startswith(f"drawn from: {drawn_from}")


def test_marks_of_several_samples_and_of_old_forms_are_told_apart() -> None:
    text = quality.about([Sample(False, 0.0), Sample(True, 0.3), None])
    assert text.startswith(
        "drawn from: kept boxes; kept and removed boxes with a grounding score of at least 0.3; "
        "unnamed, or chosen by hand in the explorer. The precision of marks of several "
        "samples is that of no set of boxes"
    )
    assert quality.about([None]) == "drawn from: unnamed, or chosen by hand in the explorer"


def test_malformed_sample_is_reported_with_its_line(
    folder: Path, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(output, "boxes=3")
    mark(folder / "audit.csv", ["right"] * 3)
    form = folder / "audit.csv"
    form.write_text(form.read_text().replace("kept,0", "kept,nan"))
    assert run(output, f"marks={form}") == 2
    assert "line 2: the sample is 'kept', 'nan'" in capsys.readouterr().err


def test_sample_that_lacks_the_boxes_of_dropped_rows_is_one_of_kept_boxes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = write_output(folder / "out", make_tables(1, 60))
    run(output, "boxes=1000", "of=all")
    assert {row["sample_of"] for row in lines_of(folder / "audit.csv")} == {"kept"}
    assert "images of dropped rows are not stored" in capsys.readouterr().out
    run(output, "boxes=1", "of=all", "form=one.csv")
    assert [row["sample_of"] for row in lines_of(folder / "one.csv")] == ["all"]
