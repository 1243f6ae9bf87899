"""What WordNet knows of an English word: the classes of its senses as a noun, by frequency, and whether it is a name.

The file web/words.txt.gz is made from WordNet 3.0 by `pipeline.stages.parse.recipe`. A line is a word, a tab and its
codes: a letter for each class in the order of CLASSES, followed by its share of the senses in tenths (`a9`); then `V` for a
verb, `N` for a word that is a name only, and `P` for the name of a place. A compound has an underscore: `parking_lot`.
"""

import gzip
from functools import cache, lru_cache
from pathlib import Path
from string import ascii_lowercase
from typing import Final

WORDS: Final = Path(__file__).with_name("web") / "words.txt.gz"
NAMES: Final = """
    tops act animal artifact attribute body cognition communication event feeling food group location motive object person
    phenomenon plant possession process quantity relation shape state substance time
"""
CLASSES: Final = NAMES.split()
"""WordNet's lexicographer files of nouns, 03 to 28 (lexnames(5WN))."""
CODES: Final = dict(zip(CLASSES, ascii_lowercase, strict=False))
VISIBLE: Final = {
    **dict.fromkeys(("animal", "artifact", "body", "food", "object", "person", "plant"), 1.0),
    "substance": 0.9,
    "shape": 0.6,
    "group": 0.5,
    "location": 0.5,
    "tops": 0.5,
    "phenomenon": 0.4,
    "communication": 0.15,
    "act": 0.1,
    "event": 0.1,
    "possession": 0.1,
}
"""Probability that a thing of a class can be seen in a picture; 0 for the others. Ours."""
ABSTRACT: Final = {"feeling", "motive", "time", "cognition", "state"}
"""Classes of what cannot be seen."""
CACHED: Final = 20_000
"""Nouns whose classes are kept."""
ENDINGS: Final = (
    *(("s", ""), ("es", ""), ("ies", "y"), ("ed", ""), ("ed", "e"), ("d", ""), ("ing", ""), ("ing", "e"), ("'s", "")),
    ("est", ""),
)
"""Ending of an inflected word -> ending of the word that the file has."""


@cache
def lists() -> dict[str, frozenset[str]]:
    """Return the lists of words of lists.txt by their names."""
    lines = Path(__file__).with_name("lists.txt").read_text(encoding="utf-8").splitlines()
    return {name: frozenset(found.split()) for name, _, found in (line.partition(": ") for line in lines)}


def listed(name: str) -> frozenset[str]:
    """Return a list of words."""
    return lists()[name]


@cache
def words() -> dict[str, str]:
    """Return the codes of each word. They take about 20 MB of memory."""
    with gzip.open(WORDS, "rt", encoding="utf-8") as file:
        return dict(line.rstrip("\n").split("\t") for line in file)


@lru_cache(CACHED)
def shares(noun: str) -> dict[str, float]:
    """Return the classes of a noun in lower case with their share of its senses; none for an unknown one."""
    codes = words().get(noun, "")
    return {name: int(codes[at + 1]) / 10 for name, code in CODES.items() if (at := codes.find(code)) >= 0}


@lru_cache(CACHED)
def visible(noun: str) -> float | None:
    """Return the share of the senses of a noun that can be seen, None for an unknown one.

    >>> visible("dog"), visible("wisdom")
    (1.0, 0.0)
    """
    found = shares(noun)
    return (
        round(sum(share * VISIBLE.get(name, 0.0) for name, share in found.items()) / sum(found.values()), 2)
        if found
        else None
    )


def is_known(word: str) -> bool:
    """Return True if WordNet has a word in lower case, which is no name only; inflected forms count."""
    known = words()
    bases = (word, *(word[: -len(end)] + base for end, base in ENDINGS if word.endswith(end)))
    return any("N" not in known.get(base, "N") for base in bases)


def is_verb(word: str) -> bool:
    """Return True for the base form of a verb."""
    return "V" in words().get(word, "")


def is_present_participle(word: str) -> bool:
    """Return True for a verb in -ing in lower case: `sitting`."""
    bases = (word[:-3], f"{word[:-3]}e", word[:-4])
    return word.endswith("ing") and len(word) > 4 and any(map(is_verb, bases))


def is_third_person(word: str) -> bool:
    """Return True for a verb in -s in lower case: `watches`."""
    return word.endswith("s") and (is_verb(word[:-1]) or is_verb(word[:-2]))


def is_place(word: str) -> bool:
    """Return True for the name of a place in lower case."""
    return "P" in words().get(word, "")


def is_animate(noun: str) -> bool:
    """Return True for a noun whose senses are mostly people and animals, and no things, such as bats and cranes."""
    found = shares(noun)
    return found.get("person", 0.0) + found.get("animal", 0.0) > 0.5 and "artifact" not in found


def is_abstract(noun: str) -> bool:
    """Return True for a noun all of whose senses are feelings, motives, times, thoughts or states."""
    return bool(shares(noun)) and shares(noun).keys() <= ABSTRACT


def is_person(noun: str) -> bool:
    """Return True for a noun whose senses are mostly people, or groups of them."""
    return shares(noun).get("person", 0.0) + shares(noun).get("group", 0.0) > 0.5
