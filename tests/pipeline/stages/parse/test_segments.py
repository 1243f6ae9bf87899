"""Tests of what the parser sees of a web text, and of what is hidden from it."""

import pytest
import spacy

from pipeline.stages.parse.normalise import normalise, set_up_tokenizer
from tests.patience import linear_time


@pytest.fixture(scope="module")
def nlp() -> spacy.Language:
    nlp = spacy.blank("en")
    set_up_tokenizer(nlp)
    return nlp


def parts(nlp: spacy.Language, caption: str) -> list[str]:
    return [segment.doc.text.strip() for segment in normalise(nlp.make_doc(caption), caption)[0]]


def hidden(nlp: spacy.Language, caption: str) -> dict[str, str]:
    doc = nlp.make_doc(caption)
    return {doc[first:end].text: reason for first, end, reason in normalise(doc, caption)[1]}


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a lamp - a chair", ["a lamp", "a chair"]),
        ("lamp|chair", ["lamp", "chair"]),
        ("a lamp--a chair—a bench", ["a lamp", "a chair", "a bench"]),
        ("Garden: a lamp", ["Garden", "a lamp"]),
        ("a lamp |", ["a lamp"]),
        ("Shop > Lamps → Desk lamps", ["Shop", "Lamps", "Desk lamps"]),
        ("lamp,desk,oak chair", ["lamp", "desk", "oak chair"]),
        ("a lamp (with a shade) on a desk", ["a lamp on a desk", "with a shade"]),
        ("old lamp 💡 works well", ["old lamp", "works well"]),
        ("my 🐈 cat asleep", ["my cat asleep"]),
        ("a lamp w/ shade & cable", ["a lamp with shade and cable"]),
        ("on a t-shirt and/or a hat", ["on a t-shirt and/or a hat"]),
        ("my goat 🐐 and my lamb", ["my goat", "my lamb"]),
        ("Oak table (or two stools)", ["Oak table", "two stools"]),
        ("And a lamp", ["And a lamp"]),
        ("an id card and a wont", ["an id card and a wont"]),
        ("2024 | 15:30", [""]),
    ],
)
def test_a_text_is_divided_at_separators_brackets_and_emoji(
    nlp: spacy.Language, caption: str, expected: list[str]
) -> None:
    assert parts(nlp, caption) == expected


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("Blue Denim Jacket for Men", "blue denim jacket for men"),
        ("RED WOODEN GARDEN CHAIR", "red wooden garden chair"),
        ("USB Desk Lamp With iPhone Charger", "USB desk lamp with iPhone charger"),
        ("KELMSCOTT BRASS LANTERN", "Kelmscott brass lantern"),
        ("the Eiffel Tower in Paris", "the Eiffel Tower in Paris"),
        ("Odran Velk and Mirja Tosk", "Odran Velk and Mirja Tosk"),
    ],
)
def test_titles_are_in_lower_case_apart_from_names(nlp: spacy.Language, caption: str, expected: str) -> None:
    assert parts(nlp, caption) == [expected]


@pytest.mark.parametrize(
    ("caption", "text", "reason"),
    [
        ("a heron, photographed by ann@example.org", "ann@example.org", "address"),
        ("PXL_20240312.jpg", "PXL_20240312.jpg", "address"),
        ("a heron. Image: Odran Velk/Nordfoto", "Image: Odran Velk/Nordfoto", "credit"),
        ("a heron, 3 June 2019", "3 June 2019", "date"),
        ("a heron, circa 1910", "circa 1910", "date"),
        ("an oak chest, 120 x 45 cm", "120 x 45 cm", "measure"),
        ("a wetsuit, size XL", "size XL", "measure"),
        ("a vase isolated on white background", "isolated on white background", "stock"),
        ("a vase, royalty free vector", "royalty free vector", "stock"),
        ("how to repair a vase", "how to repair", "stock"),
        ("Untitled design (7)", "Untitled design (7)", "stock"),
        ("{{alt}}", "{{alt}}", "stock"),
        ("a vase lol", "lol", "social"),
    ],
)
def test_what_names_nothing_is_hidden_with_its_reason(
    nlp: spacy.Language, caption: str, text: str, reason: str
) -> None:
    assert hidden(nlp, caption)[text] == reason


@pytest.mark.parametrize(
    "caption",
    [
        'a 24" monitor beside a 5 x 7 frame on a desk', "a girl in a striped top and a boy at the front of a shop",
        "a man in may blossom on a march through a marsh", "a stock of wood and a photo on a wall", "2 dogs and 3 cats",
        "a product image above a placeholder card", "loading docks",
    ],
)  # fmt: skip
def test_words_of_a_description_are_not_hidden(nlp: spacy.Language, caption: str) -> None:
    assert parts(nlp, caption) == [caption]
    assert hidden(nlp, caption) == {}


def test_segments_and_what_is_hidden_have_distinct_tokens_in_order(nlp: spacy.Language) -> None:
    caption = "Red Hats|BAGS (new) - 2 for Women: Big Sale 🎉 #hats #bags | www.example.org"
    doc = nlp.make_doc(caption)
    segments, masked = normalise(doc, caption)
    places = [i for segment in segments for i in segment.tokens] + [
        i for first, end, _ in masked for i in range(first, end)
    ]
    assert len(places) == len(set(places)) <= len(doc)
    assert [len(segment.tokens) for segment in segments] == [len(segment.doc) for segment in segments]


@pytest.mark.parametrize(
    "part", ["1 x ", "10 by 10 x ", ".@", "10 x 10 cm x", "((", "1,1,", "Photo: Ab ", "free vector ", "#a,", "a-b "]
)
def test_masks_take_little_time_on_texts_that_nearly_match(nlp: spacy.Language, part: str) -> None:
    caption = (part * 500)[:1000]
    with linear_time():
        normalise(nlp.make_doc(caption), caption)
