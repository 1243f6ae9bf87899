from collections.abc import Sequence
from threading import Event
from typing import Any, get_args

import numpy as np
import pytest

from common.errors import UserError
from common.images import Image
from pipeline.ground.config import GroundConfig
from pipeline.ground.grounder import Detection, Grounded, PhraseDrop, Span
from pipeline.ground.load import SCORE_THRESHOLD, score_threshold
from pipeline.ground.stage import Ground, select
from pipeline.images import encode_jpeg
from schemas.status import PHRASE_REMOVALS
from tests.pipeline.rows import table_after

CAPTION = "we see a dog and a cat"


class Finder:
    """Stands for the network: one box a phrase, and a note of what it was asked."""

    def __init__(self, score: float = 0.9, unknown: Sequence[str] = ()) -> None:
        self.score = score
        self.unknown = unknown
        self.sizes: list[list[tuple[int, ...]]] = []
        self.texts: list[list[str]] = []

    def bucket(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def prepare(
        self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]
    ) -> list[list[str]]:
        self.sizes.append([image.shape[:2] for image in images])
        texts = [[c[a:b] for a, b in own] for c, own in zip(captions, spans, strict=True)]
        self.texts += texts
        return texts

    def forward(self, prepared: list[list[str]]) -> list[list[str]]:
        return prepared

    def collect(self, output: list[list[str]]) -> list[Grounded]:
        return [
            Grounded(
                boxes=[
                    Detection(n, (n / 4, 0.0, n / 4 + 0.2, 1.2), self.score - n / 100)
                    for n, text in enumerate(own)
                    if text not in self.unknown
                ],
                dropped={n: "unknown_words" for n, text in enumerate(own) if text in self.unknown},
            )
            for own in output
        ]


def row(width: int = 40, height: int = 30, **more: object) -> dict[str, object]:
    chunks = [
        {"start": 0, "end": 2, "root": 0, "removed": "pronoun"},
        {"start": 7, "end": 12, "root": 3, "removed": None},
        {"start": 17, "end": 22, "root": 6, "removed": None},
    ]
    image = encode_jpeg(np.full((height, width, 3), 128, np.uint8))
    return {"caption": CAPTION, "noun_chunks": chunks, "width": width, "height": height, "image": image, **more}


def given(start: int, end: int, score: float = 0.7) -> dict[str, float]:
    return {"start": start, "end": end, "x_min": 0.1, "y_min": 0.1, "x_max": 0.9, "y_max": 0.9, "score": score}


def test_only_phrases_that_were_not_removed_are_asked_for_and_boxes_name_their_chunk() -> None:
    finder = Finder()
    (out,) = Ground(GroundConfig(), finder)(table_after("parse", [row()])).to_pylist()
    assert finder.texts == [["a dog", "a cat"]]
    assert [box["phrase"] for box in out["boxes"]] == [1, 2]
    assert out["boxes"][0]["y_max"] == 1.0
    assert out["status"] == "kept"


def test_images_go_through_the_network_in_batches_of_one_size_and_come_back_in_order() -> None:
    finder = Finder()
    rows = [row(40), row(50), row(40), row(40), row(50)]
    table = Ground(GroundConfig(batch_size=2), finder)(table_after("parse", rows))
    assert sorted(map(len, finder.sizes)) == [1, 2, 2]
    assert all(len(set(sizes)) == 1 for sizes in finder.sizes)
    assert table["key"].to_pylist() == [f"{i:012d}" for i in range(5)]
    assert all(boxes is not None for boxes in table["boxes"].to_pylist())


def test_row_without_a_box_above_the_floor_is_dropped_as_no_box() -> None:
    table = Ground(GroundConfig(floor=0.5), Finder(score=0.4))(table_after("parse", [row()]))
    assert table.select(["reason", "detail", "image"]).to_pylist() == [
        {"reason": "no_box", "detail": "2 phrases", "image": None}
    ]


def test_given_boxes_skip_the_network_and_come_best_first() -> None:
    finder = Finder()
    boxes = [given(17, 22, 0.7), given(7, 12, 0.8)]
    (out,) = Ground(GroundConfig(), finder)(table_after("parse", [row(given_noun_chunks=boxes)])).to_pylist()
    assert finder.texts == []
    assert [(box["phrase"], round(box["score"], 3)) for box in out["boxes"]] == [(1, 0.8), (2, 0.7)]


def test_given_phrases_that_all_vanished_are_dropped_as_ungroundable() -> None:
    lost = row(noun_chunks=[], given_noun_chunks=[given(7, 12)])
    assert Ground(GroundConfig(), Finder())(table_after("parse", [lost]))["reason"].to_pylist() == ["ungroundable"]


def test_row_whose_phrases_the_grounder_cannot_read_is_dropped_as_ungroundable() -> None:
    finder = Finder(unknown=("a dog", "a cat"))
    (out,) = Ground(GroundConfig(), finder)(table_after("parse", [row()])).to_pylist()
    assert (out["reason"], out["detail"]) == ("ungroundable", "unknown_words")
    assert [chunk["removed"] for chunk in out["noun_chunks"]] == ["pronoun", "unknown_words", "unknown_words"]


def test_a_phrase_the_grounder_cannot_ask_for_is_removed_by_name_and_the_others_keep_their_boxes() -> None:
    table = Ground(GroundConfig(), Finder(unknown=("a dog",)))(table_after("parse", [row(), row(50)]))
    for out in table.to_pylist():
        assert [chunk["removed"] for chunk in out["noun_chunks"]] == ["pronoun", "unknown_words", None]
        assert [box["phrase"] for box in out["boxes"]] == [2]
        assert out["status"] == "kept"


def test_every_reason_of_a_grounder_is_on_the_closed_list() -> None:
    assert set(get_args(PhraseDrop)) <= set(PHRASE_REMOVALS)


def test_the_next_batch_is_decoded_while_the_network_works_on_this_one() -> None:
    decoding, predicting = Event(), Event()

    class Waits(Finder):
        def prepare(self, *arguments: Any) -> Any:
            if self.sizes:  # the second batch
                decoding.set()
                assert predicting.wait(10)
            return super().prepare(*arguments)

        def forward(self, prepared: list[list[str]]) -> list[list[str]]:
            predicting.set()
            assert decoding.wait(10)
            return super().forward(prepared)

    table = Ground(GroundConfig(batch_size=1), Waits())(table_after("parse", [row(), row(50)]))
    assert table["status"].to_pylist() == ["kept", "kept"]


def test_the_network_has_the_next_batch_before_the_answers_of_this_one_are_looked_at() -> None:
    begun, collecting = Event(), Event()

    class Waits(Finder):
        def forward(self, prepared: list[list[str]]) -> list[list[str]]:
            if collecting.is_set():  # the second batch
                begun.set()
            return super().forward(prepared)

        def collect(self, output: list[list[str]]) -> list[Grounded]:
            if not collecting.is_set():
                collecting.set()
                assert begun.wait(10)
            return super().collect(output)

    table = Ground(GroundConfig(batch_size=1), Waits())(table_after("parse", [row(), row(50)]))
    assert table["status"].to_pylist() == ["kept", "kept"]


def test_dropped_rows_are_passed_on_untouched() -> None:
    dead = row(status="dropped", stage="parse", reason="no_phrase", image=None)
    (out,) = Ground(GroundConfig(), Finder())(table_after("parse", [dead])).to_pylist()
    assert (out["stage"], out["reason"], out["boxes"]) == ("parse", "no_phrase", None)


def test_better_box_suppresses_an_overlapping_one_of_another_phrase() -> None:
    best, other, far = (0.1, 0.1, 0.5, 0.5), (0.1, 0.1, 0.5, 0.52), (0.6, 0.6, 0.9, 0.9)
    found = select([Detection(0, other, 0.7), Detection(1, best, 0.8), Detection(0, far, 0.3)], 0.2, 0.6)
    assert [(d.phrase, d.score) for d in found] == [(1, 0.8), (0, 0.3)]


def test_grounder_without_calibration_is_held_to_grits_score() -> None:
    assert score_threshold("no/such/folder") == SCORE_THRESHOLD


def test_impossible_batch_size_is_named() -> None:
    with pytest.raises(UserError, match="batch_size is 0"):
        GroundConfig(batch_size=0)
