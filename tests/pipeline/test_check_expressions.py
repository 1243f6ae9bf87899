"""The check of referring expressions: grounded beside their noun chunks, kept if both have the same box."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hypergrit_common.errors import UserError
from pipeline.commands import rewrite, takedown
from pipeline.images import encode_jpeg, iou
from pipeline.stages.ground.grounder import Detection, Grounded, apart
from pipeline.stages.ground.load import GroundConfig
from pipeline.stages.ground.stage import Ground
from tests.pipeline.commands.derive.outputs import read_rows
from tests.pipeline.here import running_here
from tests.pipeline.jobs import run_job
from tests.pipeline.rows import table_after
from tests.pipeline.stages.ground.fake_grounder import FakeGrounder

CAPTION = "a cup on a tray near a jug, two pears"
CHUNKS = [(0, 5), (9, 15), (21, 26), (28, 37)]
EXPRESSIONS = [(0, 26), (9, 26), (21, 26), (28, 37)]
LEFT, RIGHT = (0.0, 0.0, 0.4, 1.0), (0.5, 0.0, 1.0, 1.0)


class Found(FakeGrounder):
    """Finds given boxes by the text of the phrase."""

    def __init__(self, boxes: dict[str, list[tuple[Any, float]]], unknown: Sequence[str] = ()) -> None:
        super().__init__(unknown=unknown)
        self.boxes = boxes

    def collect(self, output: list[list[str]]) -> list[Grounded]:
        return [
            Grounded(
                boxes=[Detection(n, *box) for n, text in enumerate(row) for box in self.boxes.get(text, ())],
                dropped={n: "too_many_word_pieces" for n, text in enumerate(row) if text in self.unknown},
            )
            for row in output
        ]


def row(**more: Any) -> dict[str, Any]:
    chunks = [{"start": start, "end": end, "root": 0, "removed": None} for start, end in CHUNKS]
    expressions = [
        {"chunk": n, "start": start, "end": end, "is_maximal": n in (0, 3)}
        for n, (start, end) in enumerate(EXPRESSIONS)
    ]
    image = encode_jpeg(np.zeros((30, 40, 3), np.uint8))
    base = {"caption": CAPTION, "noun_chunks": chunks, "ref_exps": expressions, "image": image}
    return base | {"width": 40, "height": 30} | more


def ground(grounder: FakeGrounder, rows: list[dict[str, Any]], **settings: Any) -> list[dict[str, Any]]:
    config = GroundConfig(**{"check_expressions": True, **settings})
    return Ground(config, grounder)(table_after("parse", rows)).to_pylist()


CUP, TRAY, LONG, SHORT = "a cup", "a tray", CAPTION[:26], CAPTION[9:26]


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ({CUP: [(LEFT, 0.6)], LONG: [(LEFT, 0.3), (RIGHT, 0.2)]}, [0, 1, 2, 3]),
        ({CUP: [(LEFT, 0.6)], LONG: [(LEFT, 0.3), (RIGHT, 0.4)]}, [1, 2, 3]),  # its best box is another one
        ({CUP: [(LEFT, 0.6), (RIGHT, 0.5)], LONG: [(RIGHT, 0.4)]}, [1, 2, 3]),  # the sample has the best box
        ({CUP: [(LEFT, 0.6)]}, [1, 2, 3]),  # nothing found
        ({CUP: [(LEFT, 0.6)], TRAY: [(RIGHT, 0.5)], LONG: [(LEFT, 0.9)], SHORT: [(LEFT, 0.9)]}, [0, 2, 3]),
        ({}, [0, 1, 2, 3]),  # a chunk without a box is in no sample
    ],
)
def test_an_expression_stays_if_its_best_box_is_that_of_its_chunk(found: Any, kept: list[int]) -> None:
    grounder = Found(found)
    (out,) = ground(grounder, [row()], keep_pairs=True)
    assert grounder.texts == [[*(CAPTION[a:b] for a, b in CHUNKS), LONG, SHORT]]
    assert len(grounder.sizes) == 1  # the same batch
    assert [expression["chunk"] for expression in out["ref_exps"]] == kept
    assert {box["phrase"] for box in out["boxes"]} == {n for n, text in enumerate((CUP, TRAY)) if text in found}
    if 0 not in kept:  # nothing contains the second one any more
        assert [e["is_maximal"] for e in out["ref_exps"]] == [True, False, True]


def test_overlap_of_exactly_the_limit_is_enough_and_the_limit_is_a_setting() -> None:
    half = (0.0, 0.0, 0.2, 1.0)
    assert iou(LEFT, half) == pytest.approx(0.5)
    assert iou(half, (0.2, 0.0, 0.2, 0.0)) == iou((0.1, 0.1, 0.1, 0.1), (0.1, 0.1, 0.1, 0.1)) == 0.0
    found = {CUP: [(LEFT, 0.6)], LONG: [(half, 0.9)]}
    for limit, n in ((0.5, 4), (0.51, 3)):
        assert len(ground(Found(found), [row()], min_expression_iou=limit)[0]["ref_exps"]) == n


def test_expression_that_cannot_be_grounded_is_not_confirmed_and_its_chunk_is_not_removed() -> None:
    (out,) = ground(Found({CUP: [(LEFT, 0.6)]}, unknown=[LONG]), [row()])
    assert [chunk["removed"] for chunk in out["noun_chunks"]] == [None] * 4
    assert [expression["chunk"] for expression in out["ref_exps"]] == [1, 2, 3]


def test_rows_with_given_boxes_keep_their_expressions() -> None:
    given = {"start": 0, "end": 5, "x_min": 0.1, "y_min": 0.1, "x_max": 0.9, "y_max": 0.9, "score": 0.7}
    rows = [row(), row(given_noun_chunks=[given], given_chunks=[0])]
    checked, kept = ground(Found({CUP: [(LEFT, 0.6)]}), rows)
    assert (len(checked["ref_exps"]), len(kept["ref_exps"])) == (3, 4)
    with pytest.raises(UserError, match="check_expressions needs a grounder"):
        GroundConfig(grounder="none", check_expressions=True)


def test_without_the_check_nothing_else_is_grounded_and_the_table_is_the_same() -> None:
    grounder = Found({CUP: [(LEFT, 0.6)]})
    (out,) = ground(grounder, [row()], check_expressions=False)
    assert grounder.texts == [[CAPTION[a:b] for a, b in CHUNKS]]
    assert out["ref_exps"] == row()["ref_exps"]


def test_spans_that_overlap_earlier_ones_are_apart() -> None:
    assert apart([(0, 5), (9, 15), (0, 26), (5, 9), (9, 26)]) == ([0, 1, 3], [2, 4])


@pytest.fixture(scope="module")
def checked(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("checked") / "out"
    assert run_job(tars, output, "ground.check_expressions=true", "ground.keep_pairs=true") == 0
    return output


def unconfirmed_of(output: Path) -> tuple[int, int]:
    """The number in stats.json, and that of the kept rows of arrow/."""
    stats = json.loads((output / "stats.json").read_text())
    counted = 0
    for kept in (r for r in read_rows(output).values() if r["status"] == "kept"):
        grounded = {b["phrase"] for b, s in zip(kept["boxes"], kept["box_scores"], strict=True) if not s["removed"]}
        counted += len(grounded - {expression["chunk"] for expression in kept["ref_exps"]})
    return stats["phrases"]["unconfirmed"], counted


def test_job_counts_what_it_does_not_confirm_and_other_commands_keep_it(
    checked: Path, tars: Path, tmp_path: Path
) -> None:
    n, counted = unconfirmed_of(checked)
    assert n == counted > 0
    assert f"expressions of {n} of these" in (checked / "report.html").read_text()
    assert run_job(tars, tmp_path / "plain", "ground.keep_pairs=true") == 0
    assert "unconfirmed" not in (tmp_path / "plain" / "stats.json").read_text()
    pairs = list(zip(read_rows(checked).values(), read_rows(tmp_path / "plain").values(), strict=True))
    assert all(a["boxes"] == b["boxes"] and a["box_scores"] == b["box_scores"] for a, b in pairs)
    again = ["ray.runner=local", "ray.cpu_workers=1"]
    with running_here():
        assert rewrite.main([f"source={checked}", f"output={tmp_path / 'again'}", "write.formats=[train]", *again]) == 0
    assert json.loads((tmp_path / "again" / "stats.json").read_text())["phrases"]["unconfirmed"] == n
    assert run_job(tars, checked, "ground.check_expressions=true", "ground.keep_pairs=true") == 0
    assert unconfirmed_of(checked) == (n, n)  # resumed
    (tmp_path / "list.txt").write_text(next(r["sha256"] for r in read_rows(checked).values() if r["status"] == "kept"))
    assert takedown.main([str(checked), f"list={tmp_path / 'list.txt'}", *again]) == 0
    assert len(set(unconfirmed_of(checked))) == 1
