"""Verdicts, tables and pages of the miniature study, on invented results."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from demo.paper.page import Study, write_study
from demo.paper.results import Claim, Row, judge, read_row
from demo.paper.sizes import SIZES
from demo.paper.store import Result
from demo.paper.tables import DESIGNS, build_table
from demo.paper.variants import VARIANTS
from hypergrit_common.errors import UserError
from trainer.evaluation.metrics.items import Items, mean_items

ACCURACY = "classification:concepts/accuracy"
N = 300


def row(key: str, shares: Mapping[str, float], n_seeds: int = 4) -> Row:
    """A row whose metrics have about these shares of correct items."""
    items = [
        {name: correct(share, seed=17 * seed + number) for number, (name, share) in enumerate(shares.items())}
        for seed in range(n_seeds)
    ]
    results = [
        Result(
            metrics={name: found.metric() for name, found in part.items()},
            chance={ACCURACY: 0.007},
            items=part,
            facts={},
        )
        for part in items
    ]
    return Row(variant=VARIANTS[key], results=results)


def correct(share: float, seed: int) -> Items:
    return mean_items(torch.from_numpy(np.random.default_rng(seed).random(N) < share))


def claim(direction: str, second: str | None = "clip") -> Claim:
    return Claim(
        paper="A paper <b>",
        source="table 1",
        text="A | is better than <i>B</i>",
        metric=ACCURACY,
        first="hycoclip",
        second=second,
        direction=direction,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("ours", "direction", "verdict"),
    [
        (0.8, "above", "shown"),
        (0.8, "below", "contradicted"),
        (0.8, "not above", "contradicted"),
        (0.5, "above", "not shown"),
        (0.5, "not above", "not shown"),
        (0.2, "above", "contradicted"),
        (0.2, "below", "shown"),
        (0.2, "not above", "shown"),
    ],
)
def test_verdict_follows_the_interval(ours: float, direction: str, verdict: str) -> None:
    rows = {"hycoclip": row("hycoclip", {ACCURACY: ours}), "clip": row("clip", {ACCURACY: 0.5})}
    assert judge(claim(direction), rows, 300).verdict == verdict


def test_claim_without_second_row_is_compared_with_chance() -> None:
    found = judge(claim("above", None), {"hycoclip": row("hycoclip", {ACCURACY: 0.7})}, 300)
    assert found.verdict == "shown"
    assert found.interval is not None
    assert found.interval.value == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize(("ours", "is_at_chance"), [(0.007, True), (0.04, False)])
def test_claim_about_two_rows_at_chance_says_so(ours: float, is_at_chance: bool) -> None:
    rows = {"hycoclip": row("hycoclip", {ACCURACY: ours}), "clip": row("clip", {ACCURACY: ours})}
    found = judge(claim("above"), rows, 300)
    assert (found.verdict, found.is_at_chance) == ("not shown", is_at_chance)


def test_claim_about_a_row_that_was_not_trained_is_not_measured() -> None:
    assert judge(claim("above"), {"hycoclip": row("hycoclip", {ACCURACY: 0.7})}, 10).verdict == "not measured"


def study(has_claims: bool) -> Study:
    size = replace(SIZES["smoke"], has_claims=has_claims)
    rows = {key: row(key, {ACCURACY: share}) for key, share in (("clip", 0.3), ("hycoclip", 0.6))}
    judgements = [judge(claim("above"), rows, 200), judge(claim("above", "phyclip"), rows, 200)] if has_claims else []
    return Study(
        name="<script>size",
        size=size,
        rows=rows,
        tables=[build_table(design, rows, 200 if has_claims else 0) for design in DESIGNS],
        judgements=judgements,
        facts={"command": "python <script>"},
    )


def test_page_and_markdown_escape_texts_and_hold_tables_and_verdicts(tmp_path: Path) -> None:
    write_study(study(has_claims=True), tmp_path)
    page, text = ((tmp_path / name).read_text("utf-8") for name in ("index.html", "paper.md"))
    for found in (page, text):
        assert "<script>" not in found
        assert "<i>" not in found
        assert "not measured" in found
        assert "HyCoCLIP, table 1, B/16, GRIT with boxes" in found
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("data:image/png") == 2
    content = json.loads((tmp_path / "paper.json").read_text("utf-8"))
    assert [entry["verdict"] for entry in content["claims"]] == ["shown", "not measured"]
    numbers = content["tables"][0]["rows"]["CLIP"]["concepts/accuracy".join(["classification:", ""])]
    assert numbers["mean"] == pytest.approx(0.3, abs=0.05)
    assert numbers["difference"]["high"] < 0  # CLIP is below the reference row, HyCoCLIP
    line = next(line for line in text.splitlines() if line.startswith("| CLIP | this study"))
    assert " -" in line


def test_tables_have_the_papers_rows_of_experimental_models_too() -> None:
    tables = [build_table(design, {"poinclip": row("poinclip", {ACCURACY: 0.3})}, 0) for design in DESIGNS]
    assert {line.name for table in tables for line in table.papers} == {"PoinCLIP"}


def test_small_studies_make_no_claims_and_mark_no_differences(tmp_path: Path) -> None:
    write_study(study(has_claims=False), tmp_path)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert "No claims" in page
    assert "Claims of the papers" not in page
    assert 'class="n mark"' not in page
    assert page.count("data:image/png") == 1


def test_missing_results_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=str(tmp_path / "clip-0.parquet")):
        read_row(tmp_path, VARIANTS["clip"], 1)
