"""The mapping from cleaned text back to the original, and the padding of texts to multiples of a number of tokens."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.text.base import diff_spans, pad, source_spans
from trainer.text.tokenizer import Tokenizer, clean


def test_replaced_characters_map_to_the_replaced_span_and_others_one_to_one() -> None:
    assert source_spans("a &amp; b", clean) == ("a & b", [(0, 1), (1, 2), (2, 3), (7, 8), (8, 9)])
    assert source_spans("\ufb01ne", clean) == ("fine", [(0, 1), (0, 1), (1, 2), (2, 3)])


def test_inserted_character_maps_to_the_one_before() -> None:
    assert diff_spans("ab", "axb") == [(0, 1), (0, 1), (1, 2)]


def test_text_after_mojibake_with_white_space_keeps_its_spans() -> None:
    # The second byte of the a with grave accent is read as a no-break space, which `clean` treats as white space.
    text = "caf\u00c3\u00a9 \u00c3\u00a0 Paris"
    cleaned, spans = source_spans(text, clean)
    assert cleaned == "caf\u00e9 \u00e0 Paris"
    assert [text[start:end] for start, end in spans[-5:]] == list("Paris")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "the", "dog's", "\uff41\uff41", "\ufb01\ufb01n", "\u2018the\u2019", "e\u0301le\u0301"]),
        min_size=1,
    ),
    st.sampled_from(["  ", "\t", " \n", "\u3000"]),
)
def test_equal_words_map_to_their_own_spans(words: list[str], space: str) -> None:
    text = space.join(words)
    cleaned, spans = source_spans(text, clean)
    assert cleaned == " ".join(map(clean, words))
    offset = 0
    for number, word in enumerate(words):
        start = sum(map(len, words[:number])) + number * len(space)
        found = spans[offset : offset + len(clean(word))]
        assert (found[0][0], found[-1][1]) == (start, start + len(word))
        offset += len(clean(word)) + 1


def test_dotted_capital_i_is_the_origin_of_two_characters() -> None:
    spans = Tokenizer([]).encode_with_offsets("aİb")[1]
    assert spans == [(0, 0), (0, 1), *[(1, 2)] * 3, (2, 3), (3, 3)]


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=12))
def test_offsets_of_unchanged_text_are_those_of_its_characters(text: str) -> None:
    if clean(text) != text or len(text.lower()) != len(text):
        return
    tokenizer = Tokenizer([])  # without merges: each token is a byte
    _, spans = tokenizer.encode_with_offsets(text)
    expected = [(i, i + 1) for i, char in enumerate(text.lower()) for _ in char.encode()]
    assert spans[1:-1] == expected


def test_texts_are_padded_to_a_multiple_but_not_beyond_the_context() -> None:
    rows = [[1, 2, 3], [4]]
    assert torch.equal(pad(rows), torch.tensor([[1, 2, 3], [4, 0, 0]]))
    assert pad(rows, 9, multiple=4, most=77).tolist() == [[1, 2, 3, 9], [4, 9, 9, 9]]
    assert pad([[1] * 70], multiple=16, most=77).shape == (1, 77)
    assert pad([[1] * 80], multiple=16, most=77).shape == (1, 80)
