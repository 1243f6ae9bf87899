"""General words of the independent scenes and the concepts or categories that each may mean."""

from functools import cache

from demo.world.vocabulary import CONCEPTS

ANIMAL = ("mammal", "bird", "reptile", "sea animal", "insect")
FOOD = ("fruit", "vegetable", "food")
USED = ("furniture", "tool", "instrument", "clothing", "device", "toy", "container", "object")
GENERAL: dict[tuple[str, str], tuple[str, ...]] = {
    ("animal", "animals"): ANIMAL,
    ("creature", "creatures"): ANIMAL,
    ("bird", "birds"): ("bird", "bat"),
    ("sea creature", "sea creatures"): ("sea animal", "turtle", "penguin"),
    ("insect", "insects"): ("insect",),
    ("plant", "plants"): ("plant", *FOOD),
    ("fruit", "fruits"): ("fruit", "vegetable"),
    ("vegetable", "vegetables"): ("fruit", "vegetable", "mushroom"),
    ("food item", "food items"): (*FOOD, "mushroom"),
    ("vehicle", "vehicles"): ("vehicle",),
    ("building", "buildings"): ("building",),
    ("piece of furniture", "pieces of furniture"): ("furniture", "piano"),
    ("musical instrument", "musical instruments"): ("instrument", "bell"),
    ("device", "devices"): ("device", "tool", "instrument"),
    ("machine", "machines"): ("device", "vehicle", "tool"),
    ("tool", "tools"): ("tool", "device", "sword", "pencil", "ladder"),
    ("object", "objects"): (*USED, "vehicle", "building", *FOOD, "plant"),
    ("toy", "toys"): ("toy", "snowman", "rocket"),
    ("container", "containers"): ("container", "bucket", "bathtub", "handbag", "backpack", "envelope"),
}
CENTRAL: dict[str, tuple[str, ...]] = {
    "fruit": ("fruit",),
    "vegetable": ("vegetable",),
    "plant": ("sunflower", "cactus", "palm tree"),
    "bird": ("bird",),
    "sea creature": ("sea animal",),
    "food item": FOOD,
    "device": ("device",),
    "machine": ("device", "tractor", "helicopter"),
    "tool": ("hammer", "axe", "wrench", "screwdriver"),
    "musical instrument": ("instrument",),
    "object": USED,
    "toy": ("toy",),
    "container": ("container",),
    "piece of furniture": ("furniture",),
}
"""Narrower extensions: the word is used for these only, but avoided beside anything in GENERAL."""


@cache
def extension(names: tuple[str, ...]) -> frozenset[str]:
    """Return the concepts in these concept names and categories."""
    return frozenset(concept.name for concept in CONCEPTS if concept.name in names or concept.category in names)


def general_words(members: set[str], others: set[str]) -> list[tuple[str, str]]:
    """Return the general words (singular, plural) that describe all `members` and none of `others`."""
    return [
        (singular, plural)
        for (singular, plural), wide in GENERAL.items()
        if members <= extension(CENTRAL.get(singular, wide)) and not others & extension(wide)
    ]
