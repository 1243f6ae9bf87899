"""Characters of cleaned texts find back to where they came from."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.offsets import lower_origins, source_spans
from trainer.tokenizer import Tokenizer, clean


def test_what_was_replaced_maps_as_a_whole_and_the_rest_one_to_one() -> None:
    assert source_spans("a &amp; b", "a & b") == [(0, 1), (1, 2), (2, 3), (7, 8), (8, 9)]
    assert source_spans("\ufb01ne", "fine") == [(0, 1), (0, 1), (1, 2), (2, 3)]


def test_what_was_only_added_belongs_to_the_character_before() -> None:
    assert source_spans("ab", "axb") == [(0, 1), (0, 1), (1, 2)]


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
