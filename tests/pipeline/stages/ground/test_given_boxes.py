"""Rows with given boxes (GRIT input), through cleaning, parsing and grounding."""

import re
from typing import Any

import pytest

from hypergrit_common.text import is_whole
from pipeline.stages.captions import CaptionsConfig, clean, clean_captions, in_other_units, move_span
from pipeline.stages.ground.load import GroundConfig
from pipeline.stages.ground.stage import Ground
from pipeline.stages.parse.config import ParseConfig
from pipeline.stages.parse.stage import Parse
from schemas.status import lost_boxes
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
    found = [-1 if chunk < 0 else chunk for chunk in row["given_chunks"]]
    assert found == [-1 if span is None else index[span] for span in moved] == [1, -1, -1, 0, -1, 2, -1]
    reasons = ["not_in_caption", "empty_span", "empty_span", "outside_caption"]
    assert lost_boxes(row | {"box_scores": []}) == reasons
    assert lost_boxes(row) == [
        "row_dropped_early", "not_in_caption", "empty_span", "row_dropped_early", "empty_span", "row_dropped_early",
        "outside_caption",
    ]  # fmt: skip


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


def units(text: str, phrase: str, encoding: str, width: int) -> tuple[int, int]:
    """The span of a phrase in units of an encoding."""
    start = text.index(phrase)
    return len(text[:start].encode(encoding)) // width, len(text[: start + len(phrase)].encode(encoding)) // width


@pytest.mark.parametrize(
    ("original", "phrases"),
    [
        ("\U0001f9d1\u200d\U0001f692 a tall ladder near a hydrant", ["a tall ladder", "a hydrant"]),
        ("na\u00efve d\u00e9cor: \U0001f6cb the sofa &amp; the lamp", ["the sofa", "the lamp"]),
        ("\U0001f1eb\U0001f1f7 e\u0301clair", ["e\u0301clair"]),
        (
            "\u0643\u0644\u0628 \u0639\u0644\u0649 \U0001f6cb \u0643\u0631\u0633\u064a \u0643\u0628\u064a\u0631",
            ["\u0643\u0631\u0633\u064a", "\u0643\u0628\u064a\u0631"],
        ),
    ],
)
@pytest.mark.parametrize(("encoding", "width"), [("utf-16-le", 2), ("utf-8", 1)])
def test_spans_in_other_units_lose_their_boxes_and_those_in_characters_none(
    parse: Parse, original: str, phrases: list[str], encoding: str, width: int
) -> None:
    spans = [units(original, phrase, encoding, width) for phrase in phrases]
    row = ground(parse, original, [given_box(span, 0.5) for span in spans])
    assert lost_boxes(row | {"box_scores": []}) == ["other_units"] * len(phrases)
    assert row["reason"] == "ungroundable"
    right = [units(original, phrase, "utf-32-le", 4) for phrase in phrases]
    assert min(ground(parse, original, [given_box(span, 0.5) for span in right])["given_chunks"]) >= 0


def test_one_odd_span_does_not_hide_the_units_of_the_others() -> None:
    text = "\U0001f6cb\U0001f6cb a blue chair near a wide oven"
    spans = [units(text, phrase, "utf-16-le", 2) for phrase in ("a blue chair", "a wide oven")]
    assert in_other_units(text, [*spans, (5, 8)])[:2] == [True, True]


@pytest.mark.parametrize(
    ("text", "start", "end", "whole"),
    [
        ("a red dog", 2, 9, True),
        ("a red dog", 3, 9, False),
        ("a red dog", 1, 5, False),  # at a space
        ("a red dog", 2, 6, False),
        ("the dog's bowl", 0, 7, True),
        ("a T-shirt, 12 pieces", 2, 9, True),
        ("bus 1234", 0, 6, False),
        ("\u4e00\u53ea\u72d7", 1, 2, True),  # a script without spaces
        ("\u0643\u0644\u0628 \u0635\u063a\u064a\u0631", 0, 2, False),  # Arabic
        ("\u05db\u05dc\u05d1 \u05e7\u05d8\u05df", 4, 7, True),  # Hebrew
        ("cafe\u0301 chairs", 0, 4, False),
        ("\U0001f469\u200d\U0001f680 rocket", 0, 1, False),
        ("\U0001f1eb\U0001f1f7 flag", 1, 7, False),
    ],
)
def test_spans_that_cut_words_or_graphemes_are_known(text: str, start: int, end: int, whole: bool) -> None:
    assert is_whole(text, start, end) == whole


@pytest.mark.parametrize("model", ["default", "none"])
def test_given_boxes_of_absent_things_are_lost_and_stay_inside_expressions(parse: Parse, model: str) -> None:
    original = "a lane with no cars, neither a bus nor a tram, and a hut without a roof"
    texts = ["a lane", "no cars", "cars", "neither a bus", "a tram", "a hut", "a roof", "lane with no cars"]
    boxes = [given_box((original.index(text), original.index(text) + len(text)), 0.5) for text in texts]
    whole = given_box((original.index("a hut"), len(original)), 0.5)
    row: dict[str, Any] = {"caption": original, "caption_original": original, "width": 40, "height": 30}
    row |= {"given_noun_chunks": boxes, "given_ref_exps": [whole]}
    stage = parse if model == "default" else Parse(ParseConfig(model="none"))
    (found,) = Ground(GroundConfig(), FakeGrounder())(stage(table_after("captions", [row]))).to_pylist()
    assert lost_boxes(found | {"box_scores": []}) == ["absent"] * 5
    chunks = {original[c["start"] : c["end"]]: c["removed"] for c in found["noun_chunks"]}
    assert {text for text, removed in chunks.items() if removed is None} == {"a lane", "a hut", "lane with no cars"}
    assert {chunks[text] for text in ("no cars", "cars", "neither a bus", "a tram", "a roof")} == {"absent"}
    expressions = {original[e["start"] : e["end"]] for e in found["ref_exps"]}
    assert expressions == {"a lane", "lane with no cars", "a hut without a roof"}
    assert len(found["boxes"]) == 3


def test_style_grit_keeps_given_boxes_of_absent_things() -> None:
    row = {"caption": "no cars", "caption_original": "no cars", "given_noun_chunks": [given_box((0, 7), 0.5)]}
    (found,) = Parse(ParseConfig(style="grit"))(table_after("captions", [row])).to_pylist()
    assert found["given_chunks"] == [0]


def test_a_row_with_boxes_of_absent_things_alone_is_ungroundable(parse: Parse) -> None:
    row = ground(parse, "no cars", [given_box((0, 7), 0.5)])
    assert (row["reason"], row["detail"], row["boxes"]) == ("ungroundable", "all given phrases name absent things", [])


def test_reasons_survive_the_removal_of_personal_data(parse: Parse) -> None:
    original = "\U0001f436 ann@example.org has a black dog"
    spans = [(2, 17), (0, 99), (5, 5), (-1, -1), (23, 32)]
    row = {"caption_original": original, "given_noun_chunks": [given_box(span, 0.5) for span in spans]}
    cleaned = clean_captions(table_after("download", [row]), CaptionsConfig(redact=("email",)))
    (found,) = parse(cleaned).to_pylist()
    reasons = ["not_in_caption", "outside_caption", "empty_span", "not_in_caption"]
    assert lost_boxes(found | {"box_scores": []}) == reasons
    assert found["given_chunks"][-1] == 0
