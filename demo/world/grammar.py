"""Sentence templates of the captions, from grammar.json.

A template is text with fields in braces:

    {a} {b} {c} {d}      a mention ("two red balloons"); becomes a phrase with a span and boxes
    {the_a}              a second mention of the same objects ("the two red balloons")
    {ab} {cb} {ca} ...   a relation that holds in the picture, from the first to the second ("to the left of")
    {is_a} {it_a}        the verb and the pronoun that agree with {a}
    {at_a}               the position of {a} in the picture ("in the top left corner")
    {x}                  a concept that is absent from the picture; a phrase without boxes
    {z} {the_z}          an abstract noun; a phrase without boxes

A template is used only if all its relations are true. The templates avoid constructions that spaCy's noun chunker
misparses: "a key left of a dog" ("key left" becomes one noun), "a key standing on a box", "a piece of furniture", and
"just", "only" or "also" before an article. A comma precedes each new clause.
"""

import json
from pathlib import Path

TABLES = json.loads(Path(__file__).with_name("grammar.json").read_text(encoding="utf-8"))

RELATIONS: dict[str, list[str]] = TABLES["relations"]
POSITIONS: dict[str, list[str]] = TABLES["positions"]

OPENINGS: list[str] = TABLES["openings"]
"""Text before a noun phrase. Most captions on the web have none, so the empty opening has the largest share."""

NOUN_PHRASES: dict[int, list[str]] = {int(n): texts for n, texts in TABLES["noun_phrases"].items()}
"""Noun phrases, used after an opening, by the number of mentions."""

SENTENCES: dict[int, list[str]] = {int(n): texts for n, texts in TABLES["sentences"].items()}
"""Full sentences, used without an opening, by the number of mentions."""

ABSENT_TAILS: list[str] = TABLES["absent_tails"]
ABSTRACT_TAILS: list[str] = TABLES["abstract_tails"]
TIME_TAILS: list[str] = TABLES["time_tails"]
ABSTRACT_NOUNS: list[str] = TABLES["abstract_nouns"]

# Size adjectives depend on the ratio of the slot's side to the canvas's shorter side.
SMALL, LARGE = 0.22, 0.46
SMALL_WORDS, LARGE_WORDS = ("small", "little", "tiny"), ("large", "big", "huge")

NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}
