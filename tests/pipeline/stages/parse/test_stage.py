import re
from random import Random

import pytest
import regex
import spacy

from demo.world.scenes import corpus
from demo.world.vocabulary import CATEGORY_NOUNS, CONCEPTS
from hypergrit_common.errors import UserError
from pipeline.stages.parse.config import ParseConfig, spacy_package
from pipeline.stages.parse.parser import CaptionParser
from pipeline.stages.parse.stage import Parse
from pipeline.stages.parse.types import CaptionParse
from tests.patience import linear_time
from tests.pipeline.rows import table_after

GRIT_FORM = ParseConfig(model="en_core_web_sm", style="grit")
WEB = [
    "Gonna be there's a dog; ain't it? Let's go, y'all can't wait!",
    "Men's NIKE Air Max 90 (2019) - Size 10.5, White/Black | eBay",
    "“Café Déjà Vu” in Zürich — the owners' 3 cats, she's been told, weren't there.",
    "Beautiful  young\twoman is doin' yoga at sunset, somethin' she'd got used to.",
]


@pytest.fixture(scope="module")
def stage() -> Parse:
    return Parse(ParseConfig())


@pytest.fixture(scope="module")
def parser(stage: Parse) -> CaptionParser:
    return stage.parser


@pytest.fixture(scope="module")
def full_pipeline() -> spacy.Language:
    return spacy.load(spacy_package("en_core_web_sm"))


def parse_one(parser: CaptionParser, caption: str) -> CaptionParse:
    (parse,) = parser.parse([caption])
    return parse


def expressions(parser: CaptionParser, caption: str) -> dict[str, bool]:
    """Text of each referring expression -> is_maximal."""
    return {caption[exp.start : exp.end]: exp.is_maximal for exp in parse_one(parser, caption).ref_exps}


def test_grits_form_equals_the_parse_of_the_full_spacy_pipeline(full_pipeline: spacy.Language) -> None:
    parser = CaptionParser(GRIT_FORM)
    captions = [*corpus(120), *WEB]
    for doc, parse in zip(full_pipeline.pipe(captions, batch_size=256), parser.parse(captions), strict=True):
        assert parse.tokens == [(t.idx, t.idx + len(t), t.head.i, t.dep_, t.pos_, t.tag_, t.lemma_) for t in doc], (
            doc.text
        )
        assert [(chunk.start, chunk.end, chunk.root) for chunk in parse.chunks] == [
            (chunk.start_char, chunk.end_char, chunk.root.i) for chunk in doc.noun_chunks
        ]


def test_example_of_the_paper_has_three_expressions_and_the_longest_is_maximal(parser: CaptionParser) -> None:
    assert expressions(parser, "a dog in a field of flowers") == {
        "a dog in a field of flowers": True,
        "a field of flowers": False,
        "flowers": False,
    }


def test_expression_stops_at_conjuncts_and_has_no_punctuation_at_its_ends(parser: CaptionParser) -> None:
    found = expressions(parser, "A dog with a ball and a cat under a table.")
    assert "a cat under a table" in found
    assert not any(" and " in text or text.endswith(".") for text in found)


def test_no_noun_of_the_demo_world_is_removed(parser: CaptionParser) -> None:
    names = [concept.name for concept in CONCEPTS] + [entry.noun for entry in CATEGORY_NOUNS]
    parses = parser.parse([f"A {name} next to a dog." for name in names])
    assert [name for name, parse in zip(names, parses, strict=True) if parse.chunks[0].removed] == []


def test_words_can_be_removed_and_kept() -> None:
    parser = CaptionParser(ParseConfig(extra_abstract=("Blob",), keep=("freedom",)))
    parse = parse_one(parser, "a blob, freedom and peace")
    assert [chunk.removed for chunk in parse.chunks] == ["abstract", None, "invisible"]


def test_grits_form_removes_the_14_nouns_of_its_author_and_nothing_more() -> None:
    caption = "the pursuit of happiness in a photo of kindness on the left"
    chunks = parse_one(CaptionParser(GRIT_FORM), caption).chunks
    removed = {caption[chunk.start : chunk.end]: chunk.removed for chunk in chunks if chunk.removed}
    assert removed == {"the pursuit": "abstract", "happiness": "abstract"}


@pytest.mark.parametrize(("least", "kept"), [(0.0, ["a dog", "the harmony"]), (1.0, [])])
def test_the_threshold_decides_what_is_visible(least: float, kept: list[str]) -> None:
    caption = "a dog in the harmony"
    parse = parse_one(CaptionParser(ParseConfig(min_visible=least)), caption)
    assert [caption[chunk.start : chunk.end] for chunk in parse.chunks if not chunk.removed] == kept


HOSTILE = [
    "a", "dog", "the", " ", "  ", "\n", "-", " - ", "|", "–", ": ", "/", "--", "é", "e\u0301", "👩\u200d🚀", "🐶", "𝔘", "中",
    ".", ",", "'", '"', "of", "group", "and", "PHOTO", "Title Case Words", "1954-", "\u200b", "\u0301", "🇩🇪", "x" * 40,
    "\ufb01", "İ", "ß", "standing", "\x1b", "(", ")", "«", "photo",
]  # fmt: skip


def hostile_texts(n: int) -> list[str]:
    rng = Random(0)
    return ["".join(rng.choice(HOSTILE) + rng.choice(["", " "]) for _ in range(rng.randint(1, 9))) for _ in range(n)]


def test_offsets_are_exact_on_10000_hostile_texts(parser: CaptionParser) -> None:
    texts = hostile_texts(10_000)
    with parser.nlp.memory_zone():
        words = [[token.text for token in parser.nlp.make_doc(text)] for text in texts]
    kept = 0
    for text, expected, parse in zip(texts, words, parser.parse(texts), strict=True):
        assert [text[token.start : token.end] for token in parse.tokens] == expected
        edges = {0, *(match.end() for match in regex.finditer(r"\X", text))}
        for chunk in parse.chunks:
            root = parse.tokens[chunk.root]
            assert 0 <= chunk.start < chunk.end <= len(text)
            assert chunk.start < root.end
            assert root.start < chunk.end
            assert {chunk.start, chunk.end} <= edges, (text, chunk)
            if chunk.removed is None:
                kept += 1
                assert any(char.isalpha() for char in text[chunk.start : chunk.end])
                assert not re.search(r"\||--|–|—", text[chunk.start : chunk.end]), text
        for exp in parse.ref_exps:
            assert exp.start <= parse.chunks[exp.chunk].start
            assert parse.chunks[exp.chunk].end <= exp.end <= len(text)
    assert kept > 1000


def test_row_without_a_phrase_is_dropped_as_no_phrase(stage: Parse) -> None:
    table = stage(table_after("captions", [{"caption": "we love freedom"}, {"caption": "a dog"}]))
    assert table["reason"].to_pylist() == ["no_phrase", None]
    assert table["detail"][0].as_py() == "2 noun chunks, all removed"


def test_equal_captions_have_equal_parses_and_dropped_rows_have_none(stage: Parse) -> None:
    rows = [{"caption": "a dog in a hat"}, {"caption": "a cat"}, {"caption": "a dog in a hat"}]
    rows.append({"caption": None, "status": "dropped", "stage": "captions", "reason": "empty_caption"})
    columns = stage(table_after("captions", rows)).select(["tokens", "noun_chunks", "ref_exps"]).to_pylist()
    assert columns[0] == columns[2] != columns[1]
    assert set(columns[3].values()) == {None}


def given_box(start: int, end: int, x: float = 0.1) -> dict[str, float]:
    return {"start": start, "end": end, "x_min": x, "y_min": 0.1, "x_max": 0.9, "y_max": 0.9, "score": 0.7}


def test_given_phrases_are_moved_to_the_cleaned_caption(stage: Parse) -> None:
    original, caption = "  a dog  with a dog &amp; hat", "a dog with a dog & hat"
    row = {
        "caption": caption,
        "caption_original": original,
        "given_noun_chunks": [given_box(14, 19), given_box(2, 7, 0.2), given_box(20, 29)],
        "given_ref_exps": [given_box(2, 19, 0.2), given_box(14, 19)],
    }
    (row,) = stage(table_after("captions", [row])).to_pylist()
    assert [(c["start"], c["end"]) for c in row["noun_chunks"]] == [(0, 5), (11, 16), (17, 22)]
    assert [caption[r["start"] : r["end"]] for r in row["ref_exps"]] == ["a dog with a dog", "a dog", "& hat"]
    assert row["given_chunks"] == [1, 0, 2]
    assert row["tokens"][row["noun_chunks"][1]["root"]]["lemma"] == "dog"
    assert row["status"] == "kept"


def test_given_expression_belongs_to_the_chunk_with_the_same_box(stage: Parse) -> None:
    caption = "a wire hanger with a paper cover that reads we heart our customers"
    row = {
        "caption": caption,
        "given_noun_chunks": [given_box(19, 32), given_box(0, 13, 0.2)],
        "given_ref_exps": [given_box(19, 66), given_box(0, 66, 0.2)],
    }
    (row,) = stage(table_after("captions", [row])).to_pylist()
    assert row["ref_exps"] == [
        {"chunk": 0, "start": 0, "end": 66, "is_maximal": True},
        {"chunk": 1, "start": 19, "end": 66, "is_maximal": False},
    ]


def test_rows_without_given_boxes_have_no_given_chunks(stage: Parse) -> None:
    rows = [{"caption": "a dog"}, {"caption": "a cat", "given_noun_chunks": []}]
    assert stage(table_after("captions", rows))["given_chunks"].to_pylist() == [None, None]


def test_error_for_an_unknown_model_names_the_package_to_install() -> None:
    with pytest.raises(UserError, match=r"xx_no_such_model.*pip install"):
        Parse(ParseConfig(model="xx_no_such_model"))


def test_many_given_boxes_take_linear_time(stage: Parse) -> None:
    words = "a red dog and " * 60
    spans = [(i % 700, i % 700 + 1 + i % 90) for i in range(10_000)]
    boxes = [given_box(start, end) for start, end in spans]
    row = {"caption_original": words, "caption": words.strip(), "given_noun_chunks": boxes, "given_ref_exps": boxes}
    table = table_after("captions", [row])
    with linear_time():
        (result,) = stage(table).to_pylist()
        assert len(result["given_chunks"]) == 10_000
