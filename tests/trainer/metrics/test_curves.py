import json
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from trainer.metrics.curves import ENTAILMENT_PANELS, main, panels, write_curves

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


def test_each_result_is_drawn_with_its_chance_level() -> None:
    by_title = {panel.title: panel for panel in panels(ROWS)}
    for title in ("Zero-shot accuracy", "Retrieval: recall at 1", *list(ENTAILMENT_PANELS.values())[:3]):
        (result, chance) = by_title[title].lines
        assert (result.dashed, chance.dashed) == (False, True)
        assert result.values[-1] > chance.values[-1]


def test_temperature_is_the_inverse_logit_scale_and_factors_are_a_band() -> None:
    by_title = {panel.title: panel for panel in panels(ROWS)}
    assert by_title["Temperature"].lines[0].values[0] == pytest.approx(1 / 20)
    curvature = by_title["Curvature (band: minimum to maximum over the factors)"].lines[0]
    assert (curvature.low, curvature.high) == ([0.9] * 29, [1.1] * 29)


def test_every_curvature_and_every_temperature_has_a_line() -> None:
    row = {"step": 1, "geometry/image_curvature": 1.0, "geometry/text_curvature": 2.0, "geometry/box_logit_scale": 4.0}
    by_title = {panel.title: panel for panel in panels([row])}
    assert [(line.label, line.values) for line in by_title["Curvature"].lines] == [
        ("image curvature", [1.0]),
        ("text curvature", [2.0]),
    ]
    assert by_title["Temperature"].lines[0].values == [1 / 4]


def test_metrics_that_a_run_lacks_have_no_panel() -> None:
    titles = [panel.title for panel in panels([{"step": 1, "loss/total": 1.0}])]
    assert titles == ["Loss"]


def test_curves_are_written_as_a_png(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert write_curves(tmp_path).read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("error")
def test_shares_that_are_all_zero_are_drawn_without_warnings(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "entailment/text_image/order": 0.0}\n')
    assert write_curves(tmp_path).is_file()


def test_a_run_without_metrics_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
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
    assert "has no metric 'loss/syntax'; choose one of geometry/curvature" in capsys.readouterr().err
