from threading import Event
from typing import Any, get_args

import numpy as np

from pipeline.images import encode_jpeg
from pipeline.stages.ground.grounder import Detection, Grounded, PhraseDrop
from pipeline.stages.ground.load import GroundConfig
from pipeline.stages.ground.stage import Ground, select
from schemas.status import PHRASE_REMOVALS
from tests.patience import PATIENCE_S
from tests.pipeline.rows import table_after
from tests.pipeline.stages.ground.fake_grounder import FakeGrounder

CAPTION = "we see a dog and a cat"


def row(width: int = 40, height: int = 30, **more: object) -> dict[str, object]:
    chunks = [
        {"start": 0, "end": 2, "root": 0, "removed": "pronoun"},
        {"start": 7, "end": 12, "root": 3, "removed": None},
        {"start": 17, "end": 22, "root": 6, "removed": None},
    ]
    image = encode_jpeg(np.full((height, width, 3), 128, np.uint8))
    return {"caption": CAPTION, "noun_chunks": chunks, "width": width, "height": height, "image": image, **more}


def given_box(start: int, end: int, score: float = 0.7) -> dict[str, float]:
    return {"start": start, "end": end, "x_min": 0.1, "y_min": 0.1, "x_max": 0.9, "y_max": 0.9, "score": score}


def test_only_chunks_that_are_not_removed_are_grounded_and_boxes_have_the_index_of_their_chunk() -> None:
    grounder = FakeGrounder()
    (out,) = Ground(GroundConfig(), grounder)(table_after("parse", [row()])).to_pylist()
    assert grounder.texts == [["a dog", "a cat"]]
    assert [box["phrase"] for box in out["boxes"]] == [1, 2]
    assert out["boxes"][0]["y_max"] == 1.0
    assert out["status"] == "kept"


def test_presence_of_phrases_is_stored_by_noun_chunk() -> None:
    class Present(FakeGrounder):
        def collect(self, output: Any) -> list[Grounded]:
            return [Grounded(boxes=found.boxes, presence={0: 0.25, 1: 0.75}) for found in super().collect(output)]

    rows = [row(), row(given_noun_chunks=[given_box(7, 12)], given_chunks=[1])]
    assert Ground(GroundConfig(), Present())(table_after("parse", rows))["presence"].to_pylist() == [
        [None, 0.25, 0.75],
        None,
    ]
    assert Ground(GroundConfig(), FakeGrounder())(table_after("parse", [row()]))["presence"].to_pylist() == [None]


def test_batches_have_images_of_one_size_and_rows_keep_their_order() -> None:
    grounder = FakeGrounder()
    rows = [row(40), row(50), row(40), row(40), row(50)]
    table = Ground(GroundConfig(batch_size=2), grounder)(table_after("parse", rows))
    assert sorted(map(len, grounder.sizes)) == [1, 2, 2]
    assert all(len(set(sizes)) == 1 for sizes in grounder.sizes)
    assert table["key"].to_pylist() == [f"{i:012d}" for i in range(5)]
    assert all(boxes is not None for boxes in table["boxes"].to_pylist())


def test_row_without_a_box_above_the_floor_is_dropped_as_no_box() -> None:
    table = Ground(GroundConfig(floor=0.5), FakeGrounder(score=0.4))(table_after("parse", [row()]))
    assert table.select(["reason", "detail", "image"]).to_pylist() == [
        {"reason": "no_box", "detail": "2 phrases", "image": None}
    ]


def test_row_whose_phrases_the_grounder_cannot_process_is_dropped_as_ungroundable() -> None:
    grounder = FakeGrounder(unknown=("a dog", "a cat"))
    (out,) = Ground(GroundConfig(), grounder)(table_after("parse", [row()])).to_pylist()
    assert (out["reason"], out["detail"]) == ("ungroundable", "unknown_words")
    assert [chunk["removed"] for chunk in out["noun_chunks"]] == ["pronoun", "unknown_words", "unknown_words"]


def test_phrase_that_the_grounder_cannot_process_is_removed_with_the_reason_and_others_keep_their_boxes() -> None:
    table = Ground(GroundConfig(), FakeGrounder(unknown=("a dog",)))(table_after("parse", [row(), row(50)]))
    for out in table.to_pylist():
        assert [chunk["removed"] for chunk in out["noun_chunks"]] == ["pronoun", "unknown_words", None]
        assert [box["phrase"] for box in out["boxes"]] == [2]
        assert out["status"] == "kept"


def test_every_reason_of_a_grounder_is_in_the_schema() -> None:
    assert set(get_args(PhraseDrop)) <= set(PHRASE_REMOVALS)


def test_next_batch_is_decoded_while_the_network_computes() -> None:
    decoding, predicting = Event(), Event()

    class WaitingGrounder(FakeGrounder):
        def prepare(self, *arguments: Any) -> Any:
            if self.sizes:  # the second batch
                decoding.set()
                assert predicting.wait(PATIENCE_S)
            return super().prepare(*arguments)

        def forward(self, prepared: list[list[str]]) -> list[list[str]]:
            predicting.set()
            assert decoding.wait(PATIENCE_S)
            return super().forward(prepared)

    table = Ground(GroundConfig(batch_size=1), WaitingGrounder())(table_after("parse", [row(), row(50)]))
    assert table["status"].to_pylist() == ["kept", "kept"]


def test_network_receives_the_next_batch_before_the_last_results_are_collected() -> None:
    next_batch_started, collecting = Event(), Event()

    class WaitingGrounder(FakeGrounder):
        def forward(self, prepared: list[list[str]]) -> list[list[str]]:
            if collecting.is_set():  # the second batch
                next_batch_started.set()
            return super().forward(prepared)

        def collect(self, output: list[list[str]]) -> list[Grounded]:
            if not collecting.is_set():
                collecting.set()
                assert next_batch_started.wait(PATIENCE_S)
            return super().collect(output)

    table = Ground(GroundConfig(batch_size=1), WaitingGrounder())(table_after("parse", [row(), row(50)]))
    assert table["status"].to_pylist() == ["kept", "kept"]


def test_dropped_rows_are_not_changed() -> None:
    dropped = row(status="dropped", stage="parse", reason="no_phrase", image=None)
    (out,) = Ground(GroundConfig(), FakeGrounder())(table_after("parse", [dropped])).to_pylist()
    assert (out["stage"], out["reason"], out["boxes"]) == ("parse", "no_phrase", None)


def test_box_suppresses_an_overlapping_one_with_a_lower_score_of_another_phrase() -> None:
    best, other, far = (0.1, 0.1, 0.5, 0.5), (0.1, 0.1, 0.5, 0.52), (0.6, 0.6, 0.9, 0.9)
    found = select([Detection(0, other, 0.7), Detection(1, best, 0.8), Detection(0, far, 0.3)], 0.2, 0.6)
    assert [(d.phrase, d.score) for d in found] == [(1, 0.8), (0, 0.3)]
