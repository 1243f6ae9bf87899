"""Verdicts, tables and the page of the study, on invented results."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from demo.paper.page import half_margins, write_page
from demo.paper.plan import MAIN, SIZES, VARIANTS
from demo.paper.results import Claim, Direction, RowResults, claims, estimate, judge, row_of, verdict
from demo.paper.statistics import MeanWithError
from demo.paper.store import write_result
from demo.paper.tables import DESIGNS, all_tables
from hypergrit_common.errors import UserError
from tests.browser import needs_browser
from trainer.evaluation.metrics.items import Items, mean_items
from trainer.evaluation.task import TaskResult

ACCURACY = "classification:scenes/accuracy"
N = 300
CLAIM = Claim(
    paper="A",
    source="table 1",
    kind="claim",
    text="A is better than B",
    metric=ACCURACY,
    first="hycoclip",
    second="clip",
    direction="above",
    margin=0.02,
)


def correct(share: float, seed: int) -> Items:
    return mean_items(torch.from_numpy(np.random.default_rng(seed).random(N) < share))


def row(key: str, share: float, n_seeds: int = 4) -> RowResults:
    results = {}
    for seed in range(n_seeds):
        values = correct(share, 17 * seed + len(key)).values
        kept = ["mean", values] if VARIANTS[key].table == MAIN else [None, None]
        columns = ["value", "chance", "reduction", "values", "units"]
        metrics = pd.DataFrame([[values.mean(), 0.007, *kept, None]], columns=columns, index=[ACCURACY])
        results[seed] = (metrics, dict[str, object]())
    return row_of(VARIANTS[key], results)


@pytest.mark.parametrize(
    ("value", "direction", "expected"),
    [
        (5, "above", "holds"),
        (-5, "above", "reversed"),
        (-5, "below", "holds"),
        (0.1, "above", "absent"),
        (1.8, "above", "undecided"),
        (0.1, "not above", "holds"),
        (-5, "not above", "holds"),
        (1.8, "not above", "undecided"),
        (5, "not above", "reversed"),
        (5, "not below", "holds"),
        (-5, "not below", "reversed"),
        (0.1, "equal", "holds"),
        (-5, "equal", "reversed"),
        (-5, "differ", "holds"),
        (0.1, "differ", "absent"),
    ],
)
def test_verdict_follows_the_interval_and_the_margin(value: float, direction: Direction, expected: str) -> None:
    assert verdict(direction, 2.0, MeanWithError(value, 1.0, 500.0, 10, has_items=True)) == expected


def test_claims_name_rows_of_the_study_and_printed_values_too() -> None:
    for claim in claims():
        assert {claim.first, claim.second} - {""} <= VARIANTS.keys(), claim.text
        assert claim.margin > 0
    assert len({(claim.text, claim.metric, claim.first, claim.second) for claim in claims()}) == len(claims())
    rows = {text.partition("=")[0] for texts in DESIGNS["printed"] for text in texts.split()}
    assert rows <= VARIANTS.keys()


def test_claims_that_compare_order_with_a_row_without_that_loss_are_marked_as_objectives() -> None:
    for claim in claims():
        if claim.metric.startswith("order:") and claim.direction == "above":
            assert claim.kind == "objective", claim.text


def test_a_claim_is_judged_on_each_tower_and_mixed_if_they_differ() -> None:
    rows = {"hycoclip": row("hycoclip", 0.8), "clip": row("clip", 0.5)}
    assert judge(CLAIM, rows).verdict == "holds"
    rows |= {"hycoclip@scenes": row("hycoclip@scenes", 0.3), "clip@scenes": row("clip@scenes", 0.5)}
    found = judge(CLAIM, rows)
    assert found.findings["scenes"].verdict == "reversed"
    assert found.verdict == "mixed"
    effect = judge(CLAIM._replace(direction="differ"), rows)
    assert [effect.findings[name].verdict for name in ("crops", "scenes")] == ["holds", "holds"]
    assert effect.verdict == "mixed"  # on different sides of 0


def test_with_true_boxes_a_row_without_boxes_is_that_of_the_crops() -> None:
    rows = {"hycoclip@true": row("hycoclip@true", 0.8), "hycoclip": row("hycoclip", 0.5), "clip": row("clip", 0.5)}
    found = judge(CLAIM, rows)
    assert found.findings["true boxes"].verdict == "holds"
    assert found.verdict != "holds"  # true boxes are not counted


@pytest.mark.parametrize(("kind", "expected"), [("claim", "not testable"), ("objective", "holds")])
def test_a_row_at_chance_makes_a_claim_untestable(kind: str, expected: str) -> None:
    rows = {"hycoclip": row("hycoclip", 0.5), "clip": row("clip", 0.007)}
    assert judge(CLAIM._replace(kind=kind), rows).verdict == expected


def test_a_claim_about_a_row_that_was_not_trained_is_not_measured() -> None:
    assert judge(CLAIM, {"hycoclip": row("hycoclip", 0.7)}).verdict == "not measured"


def test_rows_without_items_have_intervals_over_their_common_seeds() -> None:
    found = estimate(ACCURACY, row("hycoclip-eq4", 0.5, 3), row("hycoclip", 0.5, 5))
    assert found is not None
    assert (found.has_items, found.n_seeds) == (False, 3)


def test_ablations_have_the_printed_value_and_mark_what_is_not_below_the_best() -> None:
    rows = {key: row(key, share) for key, share in (("meru", 0.5), ("meru-fixed-c", 0.5), ("meru-inner", 0.1))}
    table = next(table for table in all_tables(rows) if table["title"].startswith("MERU, table 4"))
    lines = {name: cells[-1] for name, _, cells in next(iter(table["groups"].values()))}
    cell = lines[VARIANTS["meru-fixed-c"].title]
    assert cell.printed == "37.9"
    assert cell.text.endswith("ˢ")
    assert cell.is_best
    assert not lines[VARIANTS["meru-inner"].title].is_best


FACTS = {
    "settings": {"batch_size": 256, "model": {"embed_dim": 64}},
    "identity": {"lr": 4e-3, "at": [500]},
    "seconds": {"train": 60.0, "evaluate": 6.0},
    "curvature": [],
    "collapsed": False,
    "claims": "old",
    "machine": "<b>m",
    "version": "1",
}


def write(out: Path, shares: Mapping[str, float], n_seeds: int = 3, **more: object) -> None:
    """Result files of rows, as the runner writes them."""
    for key, share in shares.items():
        for seed in range(n_seeds):
            items = {"scenes/accuracy": correct(share, 100 * seed + len(key))}
            metrics = {name: found.metric() for name, found in items.items()}
            result = TaskResult(metrics=metrics, chance=dict.fromkeys(metrics, 0.007), n_used=N, items=items)
            path = out / "results" / f"{key}-{seed}.parquet"
            write_result(path, {"": {"classification": result}}, FACTS | more, VARIANTS[key].table == MAIN)


SIZE = replace(SIZES["small"], rows=("clip", "hycoclip", "meru"), seeds=3)


def test_page_opens_with_the_answer_and_names_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path, {"clip": 0.3, "hycoclip": 0.6})
    page = write_page("<script>size", SIZE, tmp_path).read_text("utf-8")
    text = (tmp_path / "paper.md").read_text("utf-8")
    for found in (page, text):
        assert "<script>" not in found
        assert "<b>m" not in found
        assert "Not finished: 1 of 3 rows: meru (0 of 3)." in found
        assert "claims.csv is not the file" in found
        assert "HyCoCLIP classifies better than CLIP: holds on crops, +" in found
        assert "MERU retrieves images better than CLIP: " not in found  # it was not measured
    assert page.index("Which claims hold here") < page.index("<svg") < page.index("Tables</h2>")
    assert "http://" not in page
    assert "https://" not in page
    content = json.loads((tmp_path / "paper.json").read_text("utf-8"))
    claim = next(
        c for c in content["claims"] if (c["first"], c["second"], c["metric"]) == ("hycoclip", "clip", ACCURACY)
    )
    assert claim["verdict"] == "holds"
    assert claim["crops"]["value"] == pytest.approx(0.3, abs=0.05)
    assert claim["crops"]["low"] > 0


def test_page_lists_settings_that_differ_from_the_papers_job(tmp_path: Path) -> None:
    write(tmp_path, {"clip": 0.3, "hycoclip": 0.6})
    page = write_page("small", SIZE, tmp_path).read_text("utf-8")
    part = page[page.index("Settings that differ") :]
    assert "<td><code>batch_size</code></td><td>256</td><td>2048, 768</td>" in part
    assert "<td><code>model.embed_dim</code></td><td>64</td><td>512</td>" in part


def test_page_notes_choices_at_the_edge_of_the_grid(tmp_path: Path) -> None:
    write(tmp_path, {"clip": 0.3}, identity={"lr": 2e-3, "at": [1000]})
    write(tmp_path, {"hycoclip": 0.6}, identity={"lr": 2e-3, "at": [500]})
    size = replace(SIZE, rates=(1e-3, 2e-3), steps=(500, 1000))
    page = write_page("small", size, tmp_path).read_text("utf-8")
    assert "1 of 2 rows have the largest number of steps that was tried, and 2 the smallest or largest rate" in page


def test_a_direction_is_marked_if_a_difference_as_large_as_the_margin_is_excluded() -> None:
    for share, margin, expected in ((0.8, 0.5, True), (0.8, 0.02, False), (0.5, 0.5, False)):
        rows = {"hycoclip": row("hycoclip", share), "clip": row("clip", 0.5)}
        found = judge(CLAIM._replace(margin=margin), rows)
        assert found.is_small == expected
        assert found.words.endswith("; the difference is less than the margin") == expected


def test_a_claim_of_equality_that_holds_is_marked_if_a_smaller_difference_is_shown() -> None:
    for share, expected in ((0.56, True), (0.5, False)):
        rows = {"hycoclip": row("hycoclip", share, 10), "clip": row("clip", 0.5, 10)}
        found = judge(CLAIM._replace(direction="not above", margin=0.2), rows)
        assert found.verdict == "holds"
        assert found.is_small == expected


def test_findings_that_rest_on_a_margin_are_counted_with_half_of_it() -> None:
    rows = {"hycoclip": row("hycoclip", 0.56, 10), "clip": row("clip", 0.5, 10)}
    equal = [judge(CLAIM._replace(direction="not above", margin=margin), rows) for margin in (0.12, 0.3)]
    above = judge(CLAIM._replace(margin=0.2), rows)
    assert [found.verdict for found in (*equal, above)] == ["holds"] * 3
    assert sorted(half_margins([*equal, above])) == [False, True]


def test_page_notes_seeds_at_chance_and_curvatures_at_their_bound(tmp_path: Path) -> None:
    learned = {"curv_learnable": True, "curv_init": 1.0, "curv_max_ratio": 10.0}
    for curvature, key in ((0.1, "hycoclip"), (0.2, "meru")):
        write(tmp_path, {key: 0.6}, curvature=[curvature], settings={"batch_size": 256, "model": learned})
    write(tmp_path, {"clip": 0.6}, n_seeds=2)
    items = {"scenes/accuracy": correct(0.0, 1)}
    result = TaskResult(metrics={"scenes/accuracy": 0.0}, chance={"scenes/accuracy": 0.007}, n_used=N, items=items)
    write_result(tmp_path / "results" / "clip-2.parquet", {"": {"classification": result}}, FACTS, True)
    page = write_page("small", SIZE, tmp_path).read_text("utf-8")
    assert "whose mean is well above it: clip (1 of 3)." in page
    assert "lower bound in all seeds of 1 rows, where &#39;learned&#39; means &#39;at the bound&#39;: hycoclip." in page


def test_smoke_makes_no_claims(tmp_path: Path) -> None:
    write(tmp_path, {"clip": 0.3})
    page = write_page("smoke", replace(SIZE, has_claims=False), tmp_path).read_text("utf-8")
    assert "No claims" in page
    assert "Which claims hold here" not in page


def test_a_page_without_results_names_what_is_missing(tmp_path: Path) -> None:
    assert "Not finished: 3 of 3 rows" in write_page("small", SIZE, tmp_path).read_text("utf-8")


def test_damaged_result_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    write(tmp_path, {"clip": 0.3})
    (tmp_path / "results" / "clip-1.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match=r"clip-1\.parquet"):
        write_page("small", SIZE, tmp_path)


@needs_browser
@pytest.mark.browser
def test_page_fits_a_phone_and_a_desktop(tmp_path: Path, browser: Any) -> None:
    write(tmp_path, {"clip": 0.3, "hycoclip": 0.6, "meru": 0.3})
    page = write_page("small", SIZE, tmp_path)
    for width in (1280, 390):
        tab = browser.new_page(viewport={"width": width, "height": 900})
        tab.goto(page.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.close()
