import json
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from trainer.metrics.curves import PANELS, main, panels, write_curves

ROWS = [
    {
        "step": step,
        "loss/total": 4.0 / step,
        "loss/contrastive": 3.0 / step,
        "loss/entailment": 1.0 / step,
        "geometry/curvature": 1.0,
        "geometry/curvature/min": 0.9,
        "geometry/curvature/max": 1.1,
        "geometry/logit_scale": 20.0,
    }
    for step in range(1, 30)
] + [
    {
        "step": 29,
        "zero_shot/animals/accuracy": 0.5,
        "zero_shot/animals/chance": 0.1,
        "retrieval/text_to_image/recall@1": 0.2,
        "retrieval/text_to_image/chance@1": 0.01,
        "entailment/text_image/order": 0.9,
        "entailment/text_image/auc": 0.95,
        "entailment/text_image/ap": 0.8,
        "entailment/text_image/chance": 0.5,
    }
]


def test_each_result_is_drawn_with_its_chance_level_and_a_curvature_with_its_range() -> None:
    found = {title: [line.label for line in lines] for title, lines in panels(ROWS).items()}
    assert list(found) == list(PANELS)
    assert found["Loss"] == ["total", "contrastive"]
    assert found["Other terms"] == ["entailment"]
    assert found["Curvature"] == ["curvature", "curvature/min", "curvature/max"]
    assert found["Zero-shot accuracy"] == ["animals/accuracy", "animals/chance"]
    assert found["Retrieval: recall at 1"] == ["text to image/recall@1", "text to image/chance@1"]
    assert [line.values for line in panels(ROWS)["Logit scale, the inverse temperature"]] == [[20.0] * 29]


def test_metrics_that_a_run_lacks_have_no_panel() -> None:
    assert list(panels([{"step": 1, "loss/total": 1.0}])) == ["Loss"]


def test_curves_are_written_as_a_png(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert write_curves(tmp_path).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", [None, "", "7\n", '{"loss/total": 1.0}\n', '{"step": 1'])
def test_a_run_without_metrics_is_an_error_that_names_the_file(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(UserError, match=r"metrics\.jsonl" + (".* line 1 " if text else "")):
        write_curves(tmp_path)


@pytest.mark.parametrize(
    "row",
    [
        '"loss/x": null',
        '"loss/x": "9"',
        '"loss/x": [1]',
        f'"loss/x": 1{"0" * 400}',
        '"loss/x": -1e200',
        '"loss/x": NaN',
    ],
)
def test_a_value_that_is_no_number_is_an_error_that_names_its_line(tmp_path: Path, row: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "loss/x": 1}}\n{{"step": 2, {row}}}\n')
    with pytest.raises(
        UserError, match=r"metrics\.jsonl cannot be read: line 2 has no number for loss/x; give the output"
    ):
        write_curves(tmp_path)


def test_names_are_drawn_as_they_are_and_rows_without_known_names_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    names = ("$\\frac{$", "a\x1b]0;b\x07", "\ud800", "$a_", "c\nd")
    path.write_text("".join(json.dumps({"step": 1, **{f"loss/{name}": 1 for name in names}}) + "\n" for _ in range(2)))
    assert write_curves(tmp_path).read_bytes().startswith(b"\x89PNG")
    path.write_text('{"step": 1, "else/loss": 1}\n')
    with pytest.raises(
        UserError, match=r"metrics\.jsonl has none of the metrics of a training; give the output folder"
    ):
        write_curves(tmp_path)


def test_one_metric_of_several_runs_is_drawn_and_a_missing_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in ("meru", "syntax_meru"):
        (tmp_path / run).mkdir()
        text = "".join(json.dumps(row) + "\n" for row in ROWS[:-1])
        (tmp_path / run / "metrics.jsonl").write_text(text, encoding="utf-8")
    runs = [str(tmp_path / run) for run in ("meru", "syntax_meru")]
    assert main([*runs, "loss/entailment"]) == 0
    picture = tmp_path / "meru" / "curves-loss_entailment.png"
    assert capsys.readouterr().out.strip() == str(picture)
    assert picture.stat().st_size > 5000
    assert main([*runs, "loss/syntax"]) == 2
    assert "syntax_meru has no metric 'loss/syntax'" in capsys.readouterr().err
