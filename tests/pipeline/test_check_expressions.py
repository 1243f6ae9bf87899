"""The check of referring expressions: grounded beside their noun chunks, had by the boxes that both share."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hypergrit_common.errors import UserError
from pipeline.commands import rewrite, takedown
from pipeline.images import encode_jpeg, iou
from pipeline.output.write.grit import grit_boxes
from pipeline.output.write.samples import unconfirmed
from pipeline.output.write.train import annotations, distinct_phrases
from pipeline.stages.ground.grounder import Detection, Grounded, apart
from pipeline.stages.ground.load import GroundConfig
from pipeline.stages.ground.stage import Ground
from schemas.rows import SCORED
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
    ("found", "flags"),
    [
        ({CUP: [(LEFT, 0.6)], LONG: [(LEFT, 0.3), (RIGHT, 0.2)]}, [True]),
        ({CUP: [(LEFT, 0.6)], LONG: [(LEFT, 0.3), (RIGHT, 0.4)]}, [False]),  # its best box is another one
        ({CUP: [(LEFT, 0.6), (RIGHT, 0.5)], LONG: [(RIGHT, 0.4)]}, [False, True]),
        ({CUP: [(LEFT, 0.6), (RIGHT, 0.5)], LONG: [(LEFT, 0.4)]}, [True, False]),  # the second cup is another cup
        ({CUP: [(LEFT, 0.6)]}, [False]),  # nothing found
        ({CUP: [(LEFT, 0.6)], TRAY: [(RIGHT, 0.5)], LONG: [(LEFT, 0.9)], SHORT: [(LEFT, 0.9)]}, [True, False]),
        ({CAPTION[28:37]: [(LEFT, 0.6), (RIGHT, 0.5)]}, [True, True]),  # not longer than its chunk
        ({}, []),
    ],
)
def test_a_box_has_the_expression_of_its_chunk_if_the_best_box_of_the_expression_is_there(
    found: Any, flags: list[bool]
) -> None:
    grounder = Found(found)
    (out,) = ground(grounder, [row()], keep_pairs=True)
    assert grounder.texts == [[*(CAPTION[a:b] for a, b in CHUNKS), LONG, SHORT]]
    assert len(grounder.sizes) == 1  # the same batch
    assert out["has_expression"] == flags
    assert out["ref_exps"] == row()["ref_exps"]
    texts = {CAPTION[slice(*CHUNKS[box["phrase"]])] for box in out["boxes"]}
    assert texts == set(found) - {LONG, SHORT}


def scored(found: Any, removed: Sequence[str | None], **more: Any) -> dict[str, Any]:
    """The row after `ground`, with a filter's answer for each of its boxes."""
    (out,) = ground(Found(found), [row()])
    scores = [{"area_px": 900.0, "clip_cosine": 0.5, "removed": reason} for reason in removed]
    return out | {"box_scores": scores, "clip_similarity": 0.5, "head_score": None, "captions": None} | more


TWO_CUPS = {CUP: [(LEFT, 0.6), (RIGHT, 0.5)], LONG: [(RIGHT, 0.4)]}


@pytest.mark.parametrize(
    ("found", "removed", "parents", "n"),
    [
        (TWO_CUPS, [None, None], [(CUP, 0), (LONG, 1)], 1),  # the best cup is not that on the tray
        (TWO_CUPS, ["low_score", None], [(CUP, 1), (LONG, 1)], 0),
        (TWO_CUPS, [None, "low_score"], [(CUP, 0)], 1),  # the other cup does not inherit it
        ({**TWO_CUPS, LONG: []}, [None, None], [(CUP, 0)], 2),
    ],
)
def test_grit_and_train_have_an_expression_only_at_the_boxes_that_have_it(
    found: Any, removed: list[str | None], parents: list[tuple[str, int]], n: int
) -> None:
    scene = scored(found, removed)
    kept = [box for box, reason in zip((LEFT, RIGHT), removed, strict=True) if reason is None]
    lists = grit_boxes(scene)
    assert [tuple(box[2:6]) for box in lists["noun_chunks"]] == [pytest.approx(box) for box in kept]
    confirmed = [pytest.approx(RIGHT)] if LONG in dict(parents) else []
    assert [(box[:2], tuple(box[2:6])) for box in lists["ref_exps"]] == [([0, 26], box) for box in confirmed]
    assert [(CAPTION[p.start : p.end], p.box) for p in distinct_phrases(scene)] == parents
    assert unconfirmed(scene) == n
    annotated = annotations(scene | {"source": "", "id": None, "extra": None}, distinct_phrases(scene), "0")["boxes"]
    flags = [flag for flag, reason in zip(scene["has_expression"], removed, strict=True) if reason is None]
    assert [box["has_expression"] for box in annotated] == flags


def test_overlap_of_exactly_the_limit_is_enough_and_the_limit_is_a_setting() -> None:
    half = (0.0, 0.0, 0.2, 1.0)
    assert iou(LEFT, half) == pytest.approx(0.5)
    assert iou(half, (0.2, 0.0, 0.2, 0.0)) == iou((0.1, 0.1, 0.1, 0.1), (0.1, 0.1, 0.1, 0.1)) == 0.0
    found = {CUP: [(LEFT, 0.6)], LONG: [(half, 0.9)]}
    for limit, flag in ((0.5, True), (0.51, False)):
        assert ground(Found(found), [row()], min_expression_iou=limit)[0]["has_expression"] == [flag]


def test_expression_that_cannot_be_grounded_is_not_confirmed_and_its_chunk_is_not_removed() -> None:
    (out,) = ground(Found({CUP: [(LEFT, 0.6)]}, unknown=[LONG]), [row()])
    assert [chunk["removed"] for chunk in out["noun_chunks"]] == [None] * 4
    assert out["has_expression"] == [False]


def test_rows_with_given_boxes_keep_their_expressions() -> None:
    given = {"start": 0, "end": 5, "x_min": 0.1, "y_min": 0.1, "x_max": 0.9, "y_max": 0.9, "score": 0.7}
    rows = [row(), row(given_noun_chunks=[given], given_chunks=[0])]
    checked, kept = ground(Found({CUP: [(LEFT, 0.6)]}), rows)
    assert (checked["has_expression"], kept["has_expression"]) == ([False], None)
    with pytest.raises(UserError, match="check_expressions needs a grounder"):
        GroundConfig(grounder="none", check_expressions=True)


def test_without_the_check_nothing_else_is_grounded_and_the_table_is_the_same() -> None:
    grounder = Found({CUP: [(LEFT, 0.6)]})
    (out,) = ground(grounder, [row()], check_expressions=False)
    assert grounder.texts == [[CAPTION[a:b] for a, b in CHUNKS]]
    assert out["ref_exps"] == row()["ref_exps"]
    assert out["has_expression"] is None


def test_spans_that_overlap_earlier_ones_are_apart() -> None:
    assert apart([(0, 5), (9, 15), (0, 26), (5, 9), (9, 26)]) == ([0, 1, 3], [2, 4])


@pytest.fixture(scope="module")
def checked(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("checked") / "out"
    assert run_job(tars, output, "ground.check_expressions=true", "ground.keep_pairs=true") == 0
    return output


def unconfirmed_in(output: Path) -> int:
    """The number in stats.json."""
    n: int = json.loads((output / "stats.json").read_text())["boxes"]["unconfirmed"]
    return n


def unconfirmed_of(output: Path) -> tuple[int, int]:
    """The number in stats.json, and that of the kept rows of arrow/."""
    counted = 0
    for kept in (r for r in read_rows(output).values() if r["status"] == "kept"):
        flags = zip(kept["has_expression"], kept["box_scores"], strict=True)
        counted += sum(not flag and not score["removed"] for flag, score in flags)
    return unconfirmed_in(output), counted


def test_job_counts_what_it_does_not_confirm_and_other_commands_keep_it(
    checked: Path, tars: Path, tmp_path: Path
) -> None:
    n, counted = unconfirmed_of(checked)
    assert n == counted > 0
    assert f"{n} are not those of an expression" in (checked / "report.html").read_text()
    assert run_job(tars, tmp_path / "plain", "ground.keep_pairs=true") == 0
    assert "unconfirmed" not in (tmp_path / "plain" / "stats.json").read_text()
    with pa.ipc.open_file(tmp_path / "plain" / "arrow" / "00000.arrow") as file:  # the same bytes as ever
        assert file.schema.names == SCORED.names
    pairs = list(zip(read_rows(checked).values(), read_rows(tmp_path / "plain").values(), strict=True))
    assert all(a["boxes"] == b["boxes"] and a["box_scores"] == b["box_scores"] for a, b in pairs)
    again = ["ray.runner=local", "ray.cpu_workers=1"]
    outputs = [tmp_path / "train", tmp_path / "grit"]
    for output in outputs:
        with running_here():
            assert (
                rewrite.main([f"source={checked}", f"output={output}", f"write.formats=[{output.name}]", *again]) == 0
            )
        assert unconfirmed_in(output) == n
    assert run_job(tars, checked, "ground.check_expressions=true", "ground.keep_pairs=true") == 0
    assert unconfirmed_of(checked) == (n, n)  # resumed
    lost = next(r for r in read_rows(checked).values() if r["status"] == "kept" and not all(r["has_expression"]))
    (tmp_path / "list.txt").write_text(lost["sha256"])
    for output in (checked, *outputs):
        assert takedown.main([str(output), f"list={tmp_path / 'list.txt'}", *again]) == 0
    left, counted = unconfirmed_of(checked)
    assert left == counted < n
    assert [unconfirmed_in(output) for output in outputs] == [left, left]
