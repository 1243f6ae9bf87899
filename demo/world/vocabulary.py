"""The words of the world: what can be drawn, in which colours, and what a caption may call it.

`vocabulary.csv` holds 207 concepts with their plural, emoji code point, category and WordNet 3.0 hypernyms (WordNet
3.0, Copyright 2006 by Princeton University; its licence permits redistribution with this notice).
"""

import csv
from dataclasses import dataclass
from pathlib import Path

# Left out: spaCy takes "rose" and "saw" for verbs and misses "teddy bear", "croissant", "mirror" and "clock" in plain
# sentences, so their phrases would never reach the detector.
MISPARSED = frozenset({"rose", "croissant", "teddy bear", "mirror", "saw", "clock"})

# Nouns that English does not count: "some cheese", never "two cheeses".
MASS_NOUNS = frozenset({"broccoli", "cheese", "corn"})

# One drawing of these shows several of them, so a caption says "some grapes" and never counts them.
DRAWN_AS_SEVERAL = frozenset({"cherry", "grape"})


@dataclass(frozen=True, kw_only=True)
class Concept:
    """One drawable thing. `hypernyms` run from the nearest to the most general WordNet synset."""

    name: str
    plural: str
    code_point: str
    category: str
    hypernyms: tuple[str, ...]
    in_prototype: bool

    @property
    def countable(self) -> bool:
        return self.name not in MASS_NOUNS and self.name not in DRAWN_AS_SEVERAL

    @property
    def noun(self) -> str:
        """The noun for one drawing: "dog", but "grapes"."""
        return self.plural if self.name in DRAWN_AS_SEVERAL else self.name


def read_concepts(path: Path) -> tuple[Concept, ...]:
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

# RGB of a tint's middle tone.
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

# What else a concept may be called. `called` names concepts or whole categories; `blocked_by` names what must not be
# anywhere else in the picture, so that "an animal" points at one thing. "Object" and "food" fit too much.
ANIMALS = ("mammal", "bird", "reptile", "sea animal", "insect")
EDIBLE = ("fruit", "vegetable", "food")


@dataclass(frozen=True, kw_only=True)
class CategoryNoun:
    noun: str
    called: tuple[str, ...]
    blocked_by: tuple[str, ...]


CATEGORY_NOUNS = (
    CategoryNoun(noun="animal", called=("mammal", "reptile", "bird"), blocked_by=ANIMALS),
    CategoryNoun(noun="bird", called=("bird",), blocked_by=("bird", "bat")),
    CategoryNoun(noun="reptile", called=("reptile",), blocked_by=("reptile",)),
    CategoryNoun(noun="sea creature", called=("sea animal",), blocked_by=("sea animal", "turtle", "penguin")),
    CategoryNoun(noun="bug", called=("butterfly", "bee", "ladybug", "spider"), blocked_by=("insect",)),
    CategoryNoun(noun="plant", called=("sunflower", "cactus", "palm tree"), blocked_by=("plant", *EDIBLE)),
    CategoryNoun(
        noun="fruit",
        called=("apple", "banana", "lemon", "orange", "watermelon", "pineapple", "pear", "strawberry"),
        blocked_by=("fruit", "vegetable"),
    ),
    CategoryNoun(
        noun="vegetable", called=("carrot", "eggplant", "pepper"), blocked_by=("fruit", "vegetable", "mushroom")
    ),
    CategoryNoun(
        noun="snack",
        called=("hamburger", "pizza", "hotdog", "taco", "pretzel", "doughnut", "cupcake"),
        blocked_by=EDIBLE,
    ),
    CategoryNoun(noun="vehicle", called=("vehicle",), blocked_by=("vehicle",)),
    CategoryNoun(noun="building", called=("house", "castle", "church", "factory", "mosque"), blocked_by=("building",)),
    CategoryNoun(
        noun="household item",
        called=("furniture",),
        blocked_by=("furniture", "device", "container", "tool", "candle", "umbrella"),
    ),
    CategoryNoun(
        noun="tool",
        called=("hammer", "axe", "wrench", "screwdriver"),
        blocked_by=("tool", "device", "sword", "pencil", "ladder"),
    ),
    CategoryNoun(noun="musical instrument", called=("instrument",), blocked_by=("instrument", "bell")),
    CategoryNoun(noun="garment", called=("dress", "shirt", "scarf"), blocked_by=("clothing",)),
    CategoryNoun(noun="gadget", called=("camera", "laptop", "telephone", "television"), blocked_by=("device", "tool")),
    CategoryNoun(noun="toy", called=("kite", "balloon"), blocked_by=("toy", "snowman", "rocket")),
    CategoryNoun(noun="ball", called=("basketball", "football"), blocked_by=("basketball", "football")),
    CategoryNoun(
        noun="container",
        called=("bottle", "teapot", "mug", "basket"),
        blocked_by=("container", "bucket", "handbag", "backpack"),
    ),
)


def category_nouns(concept: Concept, others: list[Concept]) -> list[str]:
    """The category nouns that point at `concept` alone in a picture that also holds `others`."""
    return [
        entry.noun
        for entry in CATEGORY_NOUNS
        if (concept.name in entry.called or concept.category in entry.called)
        and not any(other.name in entry.blocked_by or other.category in entry.blocked_by for other in others)
    ]
