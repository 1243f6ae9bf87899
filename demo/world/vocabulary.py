"""The vocabulary of the world: concepts that can be drawn, colours, and category nouns.

`vocabulary.csv` lists 207 concepts with plural, emoji code point, category and WordNet 3.0 hypernyms (WordNet 3.0,
Copyright 2006 by Princeton University; its licence permits redistribution with this notice).
"""

import csv
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

# Excluded: spaCy tags "rose" and "saw" as verbs and misses "teddy bear", "croissant", "mirror" and "clock" in plain
# sentences, so their phrases would never reach the detector.
MISPARSED = frozenset({"rose", "croissant", "teddy bear", "mirror", "saw", "clock"})

# Uncountable nouns: "some cheese", never "two cheeses".
MASS_NOUNS = frozenset({"broccoli", "cheese", "corn"})

# One drawing of these concepts shows several items, so captions use "some grapes" and never count them.
DRAWN_AS_SEVERAL = frozenset({"cherry", "grape"})


@dataclass(frozen=True, kw_only=True)
class Concept:
    """A drawable concept. `hypernyms` are WordNet synsets, from the nearest to the most general."""

    name: str
    plural: str
    code_point: str
    category: str
    hypernyms: tuple[str, ...]
    in_prototype: bool

    @property
    def is_countable(self) -> bool:
        """True if captions may count the concept or use "a" with it."""
        return self.name not in MASS_NOUNS and self.name not in DRAWN_AS_SEVERAL

    @property
    def noun(self) -> str:
        """The noun for one drawing: "dog", but "grapes"."""
        return self.plural if self.name in DRAWN_AS_SEVERAL else self.name


def read_concepts(path: Path) -> tuple[Concept, ...]:
    """Read the concepts of a vocabulary CSV, in the order of the file."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(
            Concept(
                name=row["concept"],
                plural=row["plural"],
                code_point=row["openmoji"],
                category=row["category"],
                hypernyms=tuple(row["wordnet30_hypernyms"].split(">")),
                in_prototype=row["used_in_prototype"] == "1",
            )
            for row in csv.DictReader(file)
        )


ALL_CONCEPTS = read_concepts(Path(__file__).parent / "vocabulary.csv")
CONCEPTS = tuple(concept for concept in ALL_CONCEPTS if concept.in_prototype and concept.name not in MISPARSED)
CONCEPT = {concept.name: concept for concept in CONCEPTS}

HYPERNYM = {concept.name: concept.hypernyms[0] for concept in CONCEPTS} | {
    synset: parent for concept in CONCEPTS for synset, parent in pairwise(concept.hypernyms)
}
"""The parent of each concept and synset in the WordNet tree of the concepts; the root has none."""


def levels_of(concept: str) -> list[str]:
    """The names on the way from below the root of the WordNet tree to a concept: its labels by depth."""
    path = [concept]
    while (parent := HYPERNYM.get(path[-1])) is not None:
        path.append(parent)
    return [name.partition(".")[0].replace("_", " ") for name in path[-2::-1]]


# RGB of each tint at mid luminance.
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 36, 42),
    "orange": (245, 130, 20),
    "yellow": (246, 212, 28),
    "green": (46, 158, 62),
    "blue": (38, 96, 214),
    "purple": (134, 54, 178),
    "pink": (246, 128, 178),
    "brown": (128, 78, 40),
    "gray": (140, 142, 146),
}


@dataclass(frozen=True, kw_only=True)
class CategoryNoun:
    """A general noun, such as "animal", and the conditions for its use.

    `applies_to` and `excluded_by` list concepts or categories. A caption uses the noun for an object of `applies_to` if
    no other object of the scene is in `excluded_by`, so that the noun refers to exactly one object.
    """

    noun: str
    applies_to: tuple[str, ...]
    excluded_by: tuple[str, ...]


def read_category_nouns(path: Path) -> tuple[CategoryNoun, ...]:
    """Read the category nouns of a CSV. "Object" and "food" are missing because they apply to too many concepts."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(
            CategoryNoun(
                noun=row["noun"],
                applies_to=tuple(row["applies_to"].split(";")),
                excluded_by=tuple(row["excluded_by"].split(";")),
            )
            for row in csv.DictReader(file)
        )


CATEGORY_NOUNS = read_category_nouns(Path(__file__).with_name("category_nouns.csv"))


def category_nouns(concept: Concept, others: list[Concept]) -> list[str]:
    """Return the category nouns that refer to `concept` alone in a picture that also contains `others`."""
    return [
        entry.noun
        for entry in CATEGORY_NOUNS
        if (concept.name in entry.applies_to or concept.category in entry.applies_to)
        and not any(other.name in entry.excluded_by or other.category in entry.excluded_by for other in others)
    ]
