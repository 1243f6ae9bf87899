import pytest
import spacy

from pipeline.stages.parse.chunks import segments, split_glued_separators


@pytest.fixture(scope="module")
def nlp() -> spacy.Language:
    nlp = spacy.blank("en")
    split_glued_separators(nlp)
    return nlp


def parts(nlp: spacy.Language, caption: str, split: bool = True, lower_titles: bool = True) -> list[str]:
    return [doc.text.strip() for doc in segments(nlp.make_doc(caption), split, lower_titles)]


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a dog - a cat", ["a dog .", "a cat"]),
        ("dog|cat", ["dog.", "cat"]),
        ("a dog--a cat—a bird", ["a dog.", "a cat.", "a bird"]),
        ("photo: a dog", ["photo.", "a dog"]),
        ("a dog |", ["a dog ."]),
        ("at 10:30 on a t-shirt and/or a hat", ["at 10:30 on a t-shirt and/or a hat"]),
    ],
)
def test_caption_is_divided_after_free_separators(nlp: spacy.Language, caption: str, expected: list[str]) -> None:
    assert parts(nlp, caption) == expected
    assert parts(nlp, caption, split=False) == [caption]


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("Blue Denim Jacket for Men", "blue denim jacket for men"),
        ("RED WOODEN GARDEN CHAIR", "red wooden garden chair"),
        ("USB Desk Lamp With iPhone Charger", "USB desk lamp with iPhone charger"),
        ("the Eiffel Tower in Paris", "the Eiffel Tower in Paris"),
        ("Two Dogs", "Two Dogs"),
    ],
)
def test_title_case_and_capitals_become_lower_case(nlp: spacy.Language, caption: str, expected: str) -> None:
    assert parts(nlp, caption) == [expected]
    assert parts(nlp, caption, lower_titles=False) == [caption]


def test_segments_have_the_tokens_of_the_caption(nlp: spacy.Language) -> None:
    doc = nlp.make_doc("Red Hats|BAGS - 2 for Women: Big Sale –")
    assert sum(map(len, segments(doc, True, True))) == len(doc)
