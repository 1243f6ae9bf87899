"""Words of a parse on byte pairs: every hard case by name, then any Unicode."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.text.syntax import (
    NONE,
    RELATIONS,
    Word,
    align,
    collate_trees,
    largest_overlap,
    read_words,
)
from trainer.text.tokenizer import clean, openai_tokenizer

OPENAI = openai_tokenizer()


def words_at(*spans: tuple[int, int]) -> list[Word]:
    """Words at these characters, each the child of the one before."""
    return [Word(start=a, end=b, head=max(i - 1, 0), dep="dep") for i, (a, b) in enumerate(spans)]


def split_as(caption: str, *words: str) -> list[Word]:
    """These words, as they follow each other in the caption."""
    spans, at = [], 0
    for word in words:
        start = caption.index(word, at)
        at = start + len(word)
        spans.append((start, at))
    return words_at(*spans)


def tokens_of(caption: str, *words: str) -> dict[str, list[str]]:
    """The pieces that each word gets."""
    ids, tree = align(OPENAI, caption, split_as(caption, *words))
    assert ids == OPENAI.encode(caption)
    assert len(tree.word_of_token) == len(ids)
    pieces: dict[str, list[str]] = {word: [] for word in words}
    for index, owner in zip(ids, tree.word_of_token, strict=True):
        if owner != NONE:
            pieces[words[owner]].append(OPENAI.pieces[index].removesuffix("</w>"))
    return pieces


def test_contraction_that_is_cut_elsewhere_goes_to_the_word_with_more_of_it() -> None:
    assert tokens_of("I don't run", "I", "do", "n't", "run") == {
        "I": ["i"],
        "do": ["don"],
        "n't": ["'t"],
        "run": ["run"],
    }
    assert tokens_of("she'll cannot", "she", "'ll", "can", "not")["'ll"] == ["'ll"]


def test_token_that_spans_two_words_goes_to_the_first_of_equals() -> None:
    ids, tree = align(OPENAI, "gonna go", split_as("gonna go", "gon", "na", "go"))
    assert [OPENAI.pieces[index] for index in ids[1:-1]] == ["gonna</w>", "go</w>"]
    assert tree.word_of_token == (NONE, 0, 1, NONE)
    assert tree.head == (0, 1), "`na`, the head of `go`, has no token, so the edge is lost"
    assert largest_overlap([(0, 2)], words_at((0, 1), (1, 2))) == [0]


def test_hyphens_and_punctuation_are_words_of_their_own() -> None:
    pieces = tokens_of("a well-known, old dog!", "a", "well", "-", "known", ",", "old", "dog", "!")
    assert all(len(tokens) == 1 for tokens in pieces.values())
    # Byte pairs take a run of punctuation as one.
    assert tokens_of('he said "go!"', "he", "said", '"', "go", "!", '"')["!"] == ['!"']


def test_emoji_has_all_the_tokens_of_its_bytes() -> None:
    pieces = tokens_of("dog 🐕‍🦺 runs", "dog", "🐕‍🦺", "runs")
    assert len(pieces["🐕‍🦺"]) > 1
    assert pieces["runs"] == ["runs"]


def test_two_flags_written_together_are_told_apart() -> None:
    caption = "🇩🇪🇫🇷 flags"
    pieces = tokens_of(caption, "🇩🇪", "🇫🇷", "flags")
    assert pieces["🇩🇪"] and pieces["🇫🇷"]  # noqa: PT018
    assert pieces["flags"] == ["flags"]


def test_dotted_capital_i_becomes_two_characters_and_words_after_it_stay_in_place() -> None:
    caption = "İİİİ İzmir by night"
    assert len(caption.lower()) == len(caption) + 5
    pieces = tokens_of(caption, "İİİİ", "İzmir", "by", "night")
    assert pieces["by"] == ["by"]
    assert pieces["night"] == ["night"]
    assert "".join(pieces["İzmir"]).endswith("zmir")


def test_ligatures_that_the_cleaning_takes_apart_belong_to_their_word() -> None:
    caption = "a \ufb01ne \ufb02ower"
    assert clean(caption) == "a fine flower"
    assert tokens_of(caption, "a", "\ufb01ne", "\ufb02ower") == {
        "a": ["a"],
        "\ufb01ne": ["fine"],
        "\ufb02ower": ["flower"],
    }


def test_entities_that_the_cleaning_resolves_belong_to_their_word() -> None:
    caption = "salt &amp;amp; pepper &lt;3"
    assert tokens_of(caption, "salt", "&amp;amp;", "pepper", "&lt;3") == {
        "salt": ["salt"],
        "&amp;amp;": ["&"],
        "pepper": ["pepper"],
        "&lt;3": ["<", "3"],
    }


def test_mojibake_that_the_cleaning_mends_belongs_to_its_word() -> None:
    caption = "cafÃ© table"
    assert OPENAI.encode(caption) == OPENAI.encode("café table")
    assert tokens_of(caption, "cafÃ©", "table")["cafÃ©"] == ["cafÃ©"], "the vocabulary writes the bytes of é that way"


def test_combining_marks_stay_with_their_letter() -> None:
    decomposed = "cafe\u0301 table"
    assert tokens_of(decomposed, "cafe\u0301", "table")["table"] == ["table"]
    zalgo = "z\u0335\u0336a\u0337lgo dog"
    pieces = tokens_of(zalgo, "z\u0335\u0336a\u0337lgo", "dog")
    assert pieces["dog"] == ["dog"]
    assert len(pieces["z\u0335\u0336a\u0337lgo"]) > 3


def test_unknown_characters_are_words_of_their_bytes() -> None:
    pieces = tokens_of("\ufffd \U000e0041 dog \u200b\ue000", "\ufffd", "\U000e0041", "dog")
    assert pieces["dog"] == ["dog"]
    assert pieces["\ufffd"]


def test_empty_words_and_white_space_have_no_tokens_and_no_edges() -> None:
    words = words_at((0, 1), (1, 2), (2, 2), (2, 5))
    _, tree = align(OPENAI, "a\tdog", words)
    assert tree.word_of_token == (NONE, 0, 1, NONE)
    assert tree.head == (0, 1), "dog's head was the empty word"


@pytest.mark.parametrize("caption", ["", " ", "\u2028\t "])
def test_caption_of_white_space_has_no_words(caption: str) -> None:
    ids, tree = align(OPENAI, caption, words_at((0, len(caption))) if caption else [])
    assert len(ids) == 2
    assert tree.word_of_token == (NONE, NONE)
    assert tree.head == tree.relation == ()
    assert collate_trees([tree]).head.shape == (1, 0)


def test_words_cut_at_77_tokens_lose_their_edges() -> None:
    caption = " ".join(["dog"] * 100)
    ids, tree = align(OPENAI, caption, words_at(*[(4 * i, 4 * i + 3) for i in range(100)]))
    assert len(ids) == len(tree.word_of_token) == 77
    assert tree.word_of_token == (NONE, *range(75), NONE)
    assert tree.head == (0, *range(74))


def test_a_word_that_the_cut_goes_through_is_no_word() -> None:
    caption = " ".join(["dog"] * 74) + " qwxzqwxz"
    start = len(caption) - len("qwxzqwxz")
    words = words_at(*[(4 * i, 4 * i + 3) for i in range(74)], (start, len(caption)))
    uncut = len(OPENAI.encode(caption))
    assert uncut > 77
    _, tree = align(OPENAI, caption, words)
    assert len(tree.head) == 74
    assert tree.word_of_token[75:] == (NONE, NONE)


def test_a_word_whose_head_was_cut_off_stays_without_an_edge() -> None:
    caption = " ".join(["dog"] * 100)
    words = [Word(start=4 * i, end=4 * i + 3, head=99, dep="dep") for i in range(100)]
    _, tree = align(OPENAI, caption, words)
    assert tree.head == tuple(range(75))


def test_relations_have_the_numbers_of_their_labels_and_unknown_ones_are_other() -> None:
    caption = "two cats"
    words = [Word(start=0, end=3, head=1, dep="nummod"), Word(start=4, end=8, head=1, dep="flat:foreign")]
    _, tree = align(OPENAI, caption, words)
    assert [RELATIONS[index] for index in tree.relation] == ["nummod", "other"]


@settings(max_examples=300, deadline=None)
@given(
    st.text(
        alphabet=st.one_of(
            st.characters(codec="utf-8"),
            st.sampled_from("aBİIß&;amp#x20 \u0301\u200d'’-😀ﬁΣÃ©<>/wéDž\u0345ŉ1٣"),
        ),
        max_size=40,
    ),
    st.data(),
)
def test_any_text_has_its_ids_and_offsets_inside_and_in_order(text: str, data: st.DataObject) -> None:
    ids, spans = OPENAI.encode_with_offsets(text)
    assert ids == OPENAI.encode(text)
    assert len(spans) == len(ids)
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert sorted(spans, key=lambda span: span[0]) == spans
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)) | {0, len(text)})
    words = words_at(*pairwise(cuts))
    chosen = largest_overlap(spans, words)
    for (start, end), owner in zip(spans, chosen, strict=True):
        shared = [max(0, min(end, word.end) - max(start, word.start)) for word in words]
        assert owner == (shared.index(max(shared)) if max(shared, default=0) > 0 else NONE)
    cut, tree = align(OPENAI, text, words)
    assert len(tree.word_of_token) == len(cut)
    assert set(tree.word_of_token) - {NONE} == set(range(len(tree.head)))
    assert all(0 <= head < len(tree.head) for head in tree.head)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ({"start": 0, "end": 3, "head": 0}, "no 'dep'"),
        ({"start": 0, "end": 3, "head": 1, "dep": "ROOT"}, "there are 1 words"),
        ({"start": 0, "end": 9, "head": 0, "dep": "ROOT"}, "of a caption of 3 characters"),
        ({"start": 2, "end": 1, "head": 0, "dep": "ROOT"}, "not a parse of this caption"),
        ({"start": "0", "end": 3, "head": 0, "dep": "ROOT"}, "whole numbers"),
        ({"start": True, "end": 3, "head": 0, "dep": "ROOT"}, "whole numbers"),
    ],
)
def test_what_is_no_parse_of_the_caption_is_refused_with_the_word(token: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=rf"tokens\[0\].*{message}"):
        read_words([token], "dog")


def test_overlapping_words_are_refused() -> None:
    token = {"start": 0, "end": 3, "head": 0, "dep": "ROOT"}
    with pytest.raises(ValueError, match=r"tokens\[1\]"):
        read_words([token, token], "dog")


def test_collated_trees_are_padded_and_their_rows_are_the_captions() -> None:
    trees = [align(OPENAI, text, split_as(text, *text.split()))[1] for text in ("a dog", "two cats chase a dog")]
    syntax = collate_trees(trees)
    assert syntax.word_of_token.tolist()[0] == [NONE, 0, 1, NONE, NONE, NONE, NONE]
    assert syntax.head.tolist() == [[0, 0, NONE, NONE, NONE], [0, 0, 1, 2, 3]]
    assert syntax.map(lambda tensor: tensor[1:]).head.tolist() == [[0, 0, 1, 2, 3]]
