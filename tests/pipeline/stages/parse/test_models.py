"""Tests of pipelines for another language, and without noun chunks."""

from pathlib import Path

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc

from hypergrit_common.errors import UserError
from pipeline.stages.parse.config import ParseConfig
from pipeline.stages.parse.parser import CaptionParser
from pipeline.stages.parse.stage import Parse
from tests.pipeline.rows import table_after


def french(folder: Path) -> str:
    """Save a small French pipeline whose parser has learned one sentence."""
    from spacy.training import Example

    nlp = spacy.blank("fr")
    nlp.add_pipe("morphologizer", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": TOK2VEC}})
    nlp.add_pipe("parser", config={"min_action_freq": 1, "model": {**PARSER, "tok2vec": TOK2VEC}})
    words = ["un", "chien", "avec", "une", "balle", "rouge"]
    labels = {
        "heads": [1, 1, 4, 4, 1, 4],
        "deps": ["det", "ROOT", "case", "det", "nmod", "amod"],
        "pos": ["DET", "NOUN", "ADP", "DET", "NOUN", "ADJ"],
    }
    example = Example.from_dict(spacy.tokens.Doc(nlp.vocab, words=words), {"words": words, **labels})
    spacy.util.fix_random_seed(0)
    nlp.initialize(lambda: [example])
    for _ in range(60):
        nlp.update([example])
    nlp.to_disk(folder)
    return str(folder)


TOK2VEC = {
    "@architectures": "spacy.HashEmbedCNN.v2", "width": 16, "depth": 1, "embed_size": 100, "window_size": 1,
    "maxout_pieces": 2, "subword_features": True, "pretrained_vectors": None,
}  # fmt: skip
PARSER = {
    "@architectures": "spacy.TransitionBasedParser.v2", "state_type": "parser", "extra_state_tokens": False,
    "hidden_width": 16, "maxout_pieces": 2, "use_upper": True,
}  # fmt: skip


def test_pipeline_of_another_language_gives_chunks_whose_root_is_the_noun(tmp_path: Path) -> None:
    parser = CaptionParser(ParseConfig(model=french(tmp_path / "fr")))
    caption = "un chien avec une balle rouge"
    (parse,) = parser.parse([caption])
    assert [caption[c.start : c.end] for c in parse.chunks] == ["un chien", "une balle rouge"]
    assert [caption[slice(*parse.tokens[c.root][:2])] for c in parse.chunks] == ["chien", "balle"]
    assert [caption[e.start : e.end] for e in parse.ref_exps] == [caption, "une balle rouge"]


@Language.component("parse_by_hand")
def parse_by_hand(doc: Doc) -> Doc:
    """Label words after a determiner as nouns; all other nouns describe the first one, or are conjuncts before "et"."""
    words = [token.lower_ for token in doc]
    nouns = [i for i in range(len(doc)) if i and words[i - 1] in ("un", "une", "du", "des")]
    for token in doc:
        i, word = token.i, words[token.i]
        noun = next((n for n in nouns if n >= i), nouns[-1])
        token.head, token.pos_, token.dep_ = doc[noun], "ADP", "case"
        if i in nouns:
            before = nouns[nouns.index(i) - 1] if i != nouns[0] else i
            is_conjunct = words[before + 1 : i].count("et") > 0
            token.head, token.pos_ = doc[before], "NOUN"
            token.dep_ = "ROOT" if before == i else "conj" if is_conjunct else "nmod"
        elif i + 1 in nouns:
            token.pos_, token.dep_ = "DET", "det"
        elif word == "et":
            token.pos_, token.dep_ = "CCONJ", "cc"
        token.lemma_ = word
    return doc


@pytest.fixture(scope="module")
def parsed_by_hand(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A French pipeline without statistics, whose labels `parse_by_hand` gives."""
    folder = tmp_path_factory.mktemp("model") / "fr"
    nlp = spacy.blank("fr")
    nlp.add_pipe("parse_by_hand", name="parser")
    nlp.to_disk(folder)
    return str(folder)


FRENCH = ["un bâtiment avec du pain", "un médicament", "une place", "un front avec des appartements"]


def test_english_lists_and_endings_remove_nothing_in_another_language(parsed_by_hand: str) -> None:
    parses = list(CaptionParser(ParseConfig(model=parsed_by_hand)).parse(FRENCH))
    assert [chunk.removed for parse in parses for chunk in parse.chunks] == [None] * 6
    table = Parse(ParseConfig(model=parsed_by_hand))(table_after("captions", [{"caption": text} for text in FRENCH]))
    assert table["status"].to_pylist() == ["kept"] * 4


def test_own_words_remove_phrases_in_another_language(parsed_by_hand: str) -> None:
    config = ParseConfig(model=parsed_by_hand, extra_abstract=("Pain", "médicament", "front"), keep=("front",))
    parses = zip(FRENCH, CaptionParser(config).parse(FRENCH), strict=True)
    removed = {text[c.start : c.end]: c.removed for text, parse in parses for c in parse.chunks}
    assert removed == {
        "un bâtiment": None, "du pain": "abstract", "un médicament": "abstract", "une place": None,
        "un front": None, "des appartements": None,
    }  # fmt: skip


def test_english_names_of_animals_do_not_end_expressions_in_another_language(parsed_by_hand: str) -> None:
    caption = "un camion avec un mur et un lion"
    (parse,) = CaptionParser(ParseConfig(model=parsed_by_hand)).parse([caption])
    assert caption in [caption[e.start : e.end] for e in parse.ref_exps]


def test_language_without_noun_chunks_is_an_error(tmp_path: Path) -> None:
    nlp = spacy.blank("cs")
    nlp.add_pipe("parser", config={"model": {**PARSER, "tok2vec": TOK2VEC}}).add_label("dep")
    nlp.initialize()
    nlp.to_disk(tmp_path / "cs")
    with pytest.raises(UserError, match="no noun chunks for the language 'cs'"):
        CaptionParser(ParseConfig(model=str(tmp_path / "cs")))
