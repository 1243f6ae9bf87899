import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from demo.world.scenes import corpus
from demo.world.vocabulary import CATEGORY_NOUNS, CONCEPTS
from pipeline.parse.config import ParseConfig
from pipeline.parse.phrases import PhraseRules
from pipeline.parse.stage import Parse, spacy_package
from tests.pipeline.rows import table_after

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
def full() -> spacy.Language:
    return spacy.load(spacy_package("en_core_web_sm"))


def phrases(stage: Parse, caption: str) -> dict[str, str | None]:
    (parse,) = stage.parse([caption])
    return {caption[start:end]: removed for start, end, _, removed in parse.chunks}


def expressions(stage: Parse, caption: str) -> dict[str, bool]:
    (parse,) = stage.parse([caption])
    return {caption[start:end]: is_maximal for _, start, end, is_maximal in parse.ref_exps}


def test_parse_is_what_the_whole_spacy_pipeline_says(stage: Parse, full: spacy.Language) -> None:
    captions = [*corpus(120), *WEB]
    for doc, parse in zip(full.pipe(captions, batch_size=256), stage.parse(captions), strict=True):
        assert parse.tokens == [(t.idx, t.idx + len(t), t.head.i, t.dep_, t.pos_, t.tag_, t.lemma_) for t in doc], (
            doc.text
        )
        assert [(c[0], c[1], c[2]) for c in parse.chunks] == [
            (c.start_char, c.end_char, c.root.i) for c in doc.noun_chunks
        ]


def test_papers_example_gives_the_three_expressions_and_the_longest_is_maximal(stage: Parse) -> None:
    assert expressions(stage, "a dog in a field of flowers") == {
        "a dog in a field of flowers": True,
        "a field of flowers": False,
        "flowers": False,
    }


def test_grit_example_holds_the_released_expression(stage: Parse) -> None:
    caption = "a wire hanger with a paper cover that reads we heart our customers"
    (parse,) = stage.parse([caption])
    assert (19, 66) in {(start, end) for _, start, end, _ in parse.ref_exps}


def test_expression_stops_at_conjuncts_and_sheds_punctuation(stage: Parse) -> None:
    found = expressions(stage, "A dog with a ball and a cat under a table.")
    assert "a cat under a table" in found
    assert not any(" and " in text or text.endswith(".") for text in found)


@pytest.mark.parametrize(
    ("caption", "phrase", "removed"),
    [
        ("we see a red ship", "we", "pronoun"),
        ("a red ship full of freedom", "freedom", "abstract"),
        ("friendship between a dog and a cat", "friendship", "abstract"),
        ("a sign of hope over a dog", "a sign", "abstract"),
        ("a stop sign over a dog", "a stop sign", None),
        ("a photo of a monument", "a photo", "relational"),
        ("a photo of a monument", "a monument", None),
        ("a dog in the upper left corner", "the upper left corner", "relational"),
    ],
)
def test_only_what_can_be_pointed_at_is_grounded(stage: Parse, caption: str, phrase: str, removed: str | None) -> None:
    assert phrases(stage, caption)[phrase] == removed


def test_no_noun_of_the_demo_world_is_removed(stage: Parse) -> None:
    nouns = [c.name for c in CONCEPTS] + [entry.noun for entry in CATEGORY_NOUNS]
    kept = {noun: stage.rules.removal([(0, 1, 0, "ROOT", "NOUN", "NN", noun.split()[-1])], 0, 0) for noun in nouns}
    assert [noun for noun, removed in kept.items() if removed] == []


def test_lists_can_be_extended_and_overruled() -> None:
    rules = PhraseRules(abstract=frozenset({"blob"}), suffixes=("ness",), keep=frozenset({"photo", "harshness"}))
    removal = {
        word: rules.removal([(0, 1, 0, "ROOT", "NOUN", "NN", word)], 0, 0)
        for word in ("blob", "photo", "view", "harshness", "kindness", "friendship")
    }
    assert removal == {
        "blob": "abstract", "photo": None, "view": "relational", "harshness": None, "kindness": "abstract",
        "friendship": None,
    }  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(text=st.text(st.sampled_from("ab dog é👩‍🚀🐶́𝔘中.,'\n"), min_size=1, max_size=60))
def test_offsets_slice_the_caption_for_any_unicode(stage: Parse, text: str) -> None:
    (parse,) = stage.parse([text])
    (doc,) = [stage.nlp.make_doc(text)]
    assert [text[start:end] for start, end, *_ in parse.tokens] == [token.text for token in doc]
    for start, end, root, _ in parse.chunks:
        assert start <= parse.tokens[root][0] < parse.tokens[root][1] == end <= len(text)


def test_row_without_a_phrase_is_dropped_as_no_phrase(stage: Parse) -> None:
    table = stage(table_after("captions", [{"caption": "we love freedom"}, {"caption": "a dog"}]))
    assert table["reason"].to_pylist() == ["no_phrase", None]
    assert table["detail"][0].as_py() == "2 noun chunks, all removed"


def test_equal_captions_get_equal_parses_and_dropped_rows_none(stage: Parse) -> None:
    rows = [{"caption": "a dog in a hat"}, {"caption": "a cat"}, {"caption": "a dog in a hat"}]
    rows.append({"caption": None, "status": "dropped", "stage": "captions", "reason": "empty_caption"})
    columns = stage(table_after("captions", rows)).select(["tokens", "noun_chunks", "ref_exps"]).to_pylist()
    assert columns[0] == columns[2] != columns[1]
    assert set(columns[3].values()) == {None}


def given_box(start: int, end: int, x: float = 0.1) -> dict[str, float]:
    return {"start": start, "end": end, "x_min": x, "y_min": 0.1, "x_max": 0.9, "y_max": 0.9, "score": 0.7}


def test_given_phrases_move_with_the_cleaned_caption(stage: Parse) -> None:
    original, caption = "  a dog  with a dog &amp; hat", "a dog with a dog & hat"
    row = {
        "caption": caption,
        "caption_original": original,
        "given_noun_chunks": [given_box(14, 19), given_box(2, 7, 0.2), given_box(20, 29)],
        "given_ref_exps": [given_box(2, 19, 0.2), given_box(14, 19)],
    }
    (row,) = stage(table_after("captions", [row])).to_pylist()
    assert [(c["start"], c["end"]) for c in row["noun_chunks"]] == [(0, 5), (11, 16)]  # "&amp; hat" is gone
    assert [caption[r["start"] : r["end"]] for r in row["ref_exps"]] == ["a dog", "a dog"]  # "a dog  with" changed too
    assert row["tokens"][row["noun_chunks"][1]["root"]]["lemma"] == "dog"
    assert row["status"] == "kept"


def test_given_expression_belongs_to_the_chunk_with_its_box(stage: Parse) -> None:
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


def test_unknown_model_is_named_with_the_mend() -> None:
    with pytest.raises(UserError, match=r"xx_no_such_model.*pip install"):
        Parse(ParseConfig(model="xx_no_such_model"))
