"""One thing has one label, whatever its letter case, number, hyphens and accents in the caption."""

from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from pipeline.stages.parse.config import ParseConfig
from pipeline.stages.parse.labels import label_of, singular_word
from pipeline.stages.parse.parser import CaptionParser
from pipeline.stages.parse.types import Token
from pipeline.summary.totals import labels as column
from schemas.rows import TOKEN


@cache
def parser() -> CaptionParser:
    return CaptionParser(ParseConfig())


def labels(caption: str) -> list[str]:
    (parse,) = parser().parse([caption])
    return [label_of(caption, parse.tokens[chunk.root]) for chunk in parse.chunks if chunk.root >= 0]


@pytest.mark.parametrize(
    ("label", "captions"),
    [
        ("dog", ["A dog", "two dogs", "DOGS", "Dogs On Grass", "a dog's", "a DOG in a car"]),
        ("t-shirt", ["three T-shirts", "RED T-SHIRTS", "a T-shirt", "two T shirts", "T\N{NON-BREAKING HYPHEN}shirts"]),
        ("person", ["people on a beach", "PEOPLE", "two persons", "a person"]),
        ("ray-ban", ["a Ray-Ban", "Ray-Bans on a table"]),
        ("jack-o'-lantern", ["a jack-o'-lantern", "two jack-o'-lanterns"]),
        ("mother-in-law", ["a mother-in-law", "two mothers-in-law"]),
        ("sheep-dog", ["a sheep-dog", "SHEEP-DOGS"]),
        ("glasses", ["a woman with glasses", "GLASSES on a table"]),
        ("glass", ["a glass on a table", "two beer glasses"]),
        ("jeans", ["blue jeans", "BLUE JEANS", "a pair of jeans", "a blue jean"]),
        ("shorts", ["a man in shorts", "red shorts"]),
        ("truck", ["a fire truck", "FIRE TRUCKS"]),
        ("café", ["a café", "CAFÉS", "two cafe\N{COMBINING ACUTE ACCENT}s"]),
        ("château", ["a château", "two châteaux"]),
        ("cookie", ["a cookie", "COOKIES", "two cookies"]),
        ("vase", ["a vase", "two vases"]),
        ("lens", ["a lens on a table", "LENSES"]),
        ("woman", ["Women in hats", "a woman's", "WOMEN"]),
        ("man", ["a man and MEN", "two men"]),
    ],
)
def test_a_thing_has_one_label(label: str, captions: list[str]) -> None:
    assert {caption: label in labels(caption) for caption in captions} == dict.fromkeys(captions, True)


def test_statistics_and_the_explorer_count_a_thing_once() -> None:
    captions = [None, "RED T-SHIRTS", "", "a T-shirt"]
    tokens = [None, *([token._asdict() for token in parse.tokens] for parse in parser().parse(captions[1:]))]
    roots = np.array([-1, len(tokens[1]) - 1, 0, len(tokens[3]) - 1, 99])
    found = column(captions, pa.array(tokens, pa.list_(TOKEN)), np.array([0, 1, 2, 3, 3]), roots)
    assert found == [None, "t-shirt", None, "t-shirt", None]


def test_names_and_words_in_the_plural_stay_as_they_are() -> None:
    words = ("adidas", "paris", "canvas", "series", "species", "tennis", "christmas", "scissors", "i", "s", "")
    assert [word for word in words if singular_word(word) != word] == []


def test_a_hostile_word_takes_no_time() -> None:
    caption = "a-" * 50_000 + "dog" + "-a" * 50_000
    start = caption.index("dog")
    token = Token(start, start + 3, 0, "ROOT", "NOUN", "NN", "dog")
    assert len(label_of(caption, token)) < 200
