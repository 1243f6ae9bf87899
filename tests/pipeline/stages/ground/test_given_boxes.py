"""Rows with given boxes (GRIT input), through cleaning, parsing and grounding."""

import re
from typing import Any

import pytest

from pipeline.stages.captions import CaptionsConfig, clean, clean_captions, move_span
from pipeline.stages.ground.load import GroundConfig
from pipeline.stages.ground.stage import Ground
from pipeline.stages.parse.config import ParseConfig
from pipeline.stages.parse.stage import Parse
from tests.pipeline.rows import table_after
from tests.pipeline.stages.ground.fake_grounder import FakeGrounder

ORIGINAL = "  a dog  with a dog &amp; hat, a dog"
DOGS = [match.span() for match in re.finditer("a dog", ORIGINAL)]
HAT = (ORIGINAL.index("amp;"), ORIGINAL.index(","))  # begins within an entity


@pytest.fixture(scope="module")
def parse() -> Parse:
    return Parse(ParseConfig())


def given_box(span: tuple[int, int], score: float) -> dict[str, float]:
    corners = {"x_min": score / 2, "y_min": 0.125, "x_max": 0.75, "y_max": 1.5}
    return {"start": span[0], "end": span[1], **corners, "score": score}


def ground(parse: Parse, original: str, boxes: list[dict[str, float]]) -> dict[str, Any]:
    """Row with these boxes after `ground`; the network must not be called."""
    row = {"caption_original": original, "given_noun_chunks": boxes, "width": 40, "height": 30}
    grounder = FakeGrounder()
    cleaned = clean_captions(table_after("download", [row]), CaptionsConfig())
    (grounded,) = Ground(GroundConfig(), grounder)(parse(cleaned)).to_pylist()
    assert grounder.texts == []
    return grounded


def test_boxes_keep_their_phrases_scores_and_order_if_cleaning_changes_the_caption(parse: Parse) -> None:
    boxes = [given_box(DOGS[2], 0.5), given_box(HAT, 0.875), given_box(DOGS[0], 0.75), given_box(DOGS[2], 0.625)]
    row = ground(parse, ORIGINAL, boxes)
    assert row["caption"] == "a dog with a dog & hat, a dog"
    spans = [(chunk["start"], chunk["end"]) for chunk in row["noun_chunks"]]
    assert spans == [(0, 5), (24, 29)]
    assert [(box["phrase"], box["score"]) for box in row["boxes"]] == [(0, 0.75), (1, 0.625), (1, 0.5)]
    assert [(box["x_min"], box["x_max"], box["y_max"]) for box in row["boxes"]] == [
        (0.375, 0.75, 1.0),
        (0.3125, 0.75, 1.0),
        (0.25, 0.75, 1.0),
    ]
    assert row["status"] == "kept"


def test_boxes_with_equal_scores_keep_the_order_of_the_input(parse: Parse) -> None:
    row = ground(parse, ORIGINAL, [given_box(DOGS[2], 0.5), given_box(DOGS[1], 0.5), given_box(DOGS[0], 0.5)])
    assert [box["phrase"] for box in row["boxes"]] == [2, 1, 0]


def test_given_chunks_are_the_chunks_at_the_moved_spans(parse: Parse) -> None:
    boxes = [given_box(span, 0.5) for span in (DOGS[1], HAT, (5, 3), DOGS[0], (0, 2), DOGS[2], (3, 99))]
    row = ground(parse, ORIGINAL, boxes)
    index = {(chunk["start"], chunk["end"]): n for n, chunk in enumerate(row["noun_chunks"])}
    moved = [move_span(ORIGINAL, row["caption"], given["start"], given["end"]) for given in boxes]
    assert row["given_chunks"] == [-1 if span is None else index[span] for span in moved] == [1, -1, -1, 0, -1, 2, -1]


@pytest.mark.parametrize(
    ("original", "phrase", "found"),
    [
        ("The dog\u2019s red bowl and a cat", "The dog\u2019s red bowl", "The dog's red bowl"),
        ("Ben &amp; Jerry\u2019s ice cream", "Ben &amp; Jerry\u2019s ice cream", "Ben & Jerry's ice cream"),
        ("see a red  hat and\u00a0a red\u00a0hat", "a red\u00a0hat", "a red hat"),
        ('<img alt="a dog"> big a dog here', "a dog here", "a dog here"),
        ("cafe\u0301 table, 2 cafe\u0301 chairs", "cafe\u0301 chairs", "caf\u00e9 chairs"),
    ],
)
def test_a_phrase_that_cleaning_changes_is_found(original: str, phrase: str, found: str) -> None:
    cleaned = clean(original)
    span = move_span(original, cleaned, original.rindex(phrase), original.rindex(phrase) + len(phrase))
    assert span is not None
    assert cleaned[slice(*span)] == found
    assert span[0] == cleaned.rindex(found)


def test_boxes_keep_their_phrases_if_personal_data_is_removed_before_them(parse: Parse) -> None:
    original = "mail ann@example.org about a  black dog and a white cat or bob@example.org"
    spans = [
        (original.index(text), original.index(text) + len(text)) for text in ("a  black dog", "a white cat", "bob@")
    ]
    row = {"caption_original": original, "width": 40, "height": 30}
    row["given_noun_chunks"] = row["given_ref_exps"] = [given_box(span, 0.5) for span in spans]  # type: ignore[assignment]
    cleaned = clean_captions(table_after("download", [row]), CaptionsConfig(redact=("email",)))
    (found,) = cleaned.to_pylist()
    texts = [found["caption_original"][given["start"] : given["end"]] for given in found["given_noun_chunks"]]
    assert texts == ["a black dog", "a white cat", ""]
    (grounded,) = Ground(GroundConfig(), FakeGrounder())(parse(cleaned)).to_pylist()
    chunks = [grounded["noun_chunks"][box["phrase"]] for box in grounded["boxes"]]
    assert [grounded["caption"][chunk["start"] : chunk["end"]] for chunk in chunks] == ["a black dog", "a white cat"]


def test_row_whose_phrases_were_all_changed_is_dropped_as_ungroundable(parse: Parse) -> None:
    row = ground(parse, ORIGINAL, [given_box(HAT, 0.9)])
    assert (row["reason"], row["detail"]) == ("ungroundable", "no given phrase is found in the cleaned caption")
    assert (row["noun_chunks"], row["given_chunks"], row["boxes"]) == ([], [-1], [])
