"""Characters of cleaned texts find back to where they came from."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.text.offsets import difference, lower_origins, source_spans
from trainer.text.tokenizer import Tokenizer, clean


def test_what_was_replaced_maps_as_a_whole_and_the_rest_one_to_one() -> None:
    assert source_spans("a &amp; b", clean) == ("a & b", [(0, 1), (1, 2), (2, 3), (7, 8), (8, 9)])
    assert source_spans("\ufb01ne", clean) == ("fine", [(0, 1), (0, 1), (1, 2), (2, 3)])


def test_what_was_only_added_belongs_to_the_character_before() -> None:
    assert difference("ab", "axb") == [(0, 1), (0, 1), (1, 2)]


def test_mojibake_over_white_space_is_found_by_what_is_left_of_the_text() -> None:
    text = "caf\u00c3\u00a9 \u00c3\u00a0 Paris"  # where the no-break space in the bytes of the a became a space
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
def test_of_equal_words_none_is_taken_for_another(words: list[str], space: str) -> None:
    text = space.join(words)
    cleaned, spans = source_spans(text, clean)
    assert cleaned == " ".join(map(clean, words))
    at = 0
    for number, word in enumerate(words):
        start = sum(map(len, words[:number])) + number * len(space)
        found = spans[at : at + len(clean(word))]
        assert (found[0][0], found[-1][1]) == (start, start + len(word))
        at += len(clean(word)) + 1


def test_dotted_capital_i_is_the_origin_of_two_characters() -> None:
    assert lower_origins("aİb") == [0, 1, 1, 2]


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=12))
def test_where_cleaning_changes_nothing_offsets_are_those_of_the_characters(text: str) -> None:
    if clean(text) != text or len(text.lower()) != len(text):
        return
    tokenizer = Tokenizer([])  # bytes: the finest pieces there are
    _, spans = tokenizer.encode_with_offsets(text)
    expected = [(i, i + 1) for i, char in enumerate(text.lower()) for _ in char.encode()]
    assert spans[1:-1] == expected
