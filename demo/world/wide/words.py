"""General nouns of the wide world, each with the concepts that it describes.

A noun describes an object if the object's concept or its category is listed. Categories are those of `vocabulary.csv`.
"""

from dataclasses import dataclass
from functools import cache

from demo.world.vocabulary import ANIMALS, CONCEPTS, EDIBLE

MAMMALS_ON_FARMS = ("horse", "cow", "pig", "rooster", "duck")
WILD = ("camel", "giraffe", "elephant", "zebra", "monkey", "crocodile", "snake", "hedgehog", "squirrel", "bat", "owl")
BAKED = ("pretzel", "doughnut", "cupcake", "cake")
MADE = ("vehicle", "furniture", "tool", "instrument", "clothing", "device", "toy", "container", "object")
ELECTRIC = ("camera", "laptop", "telephone", "television")
THINGS = (*MADE, *EDIBLE, "plant", "building")
WORN = ("hat", "shoe", "boot", "dress", "shirt", "scarf", "crown")
NOT_AN_OBJECT = ("star", "moon")  # "an object" rarely means these


@dataclass(frozen=True, kw_only=True)
class GeneralNoun:
    """A noun with its plural, the concepts or categories it surely describes, and those that it may describe."""

    noun: str
    plural: str
    sure: tuple[str, ...]
    possible: tuple[str, ...] = ()


def general(noun: str, sure: tuple[str, ...], possible: tuple[str, ...] = (), plural: str = "") -> GeneralNoun:
    return GeneralNoun(noun=noun, plural=plural or f"{noun}s", sure=sure, possible=possible)


CURATED = (
    general("animal", ANIMALS),
    general("animal", ANIMALS),
    general("creature", ANIMALS, ("snowman",)),
    general("living thing", ANIMALS, ("plant", *EDIBLE)),
    general("beast", ("mammal", "reptile"), ANIMALS, "beasts"),
    general("mammal", ("mammal",), ("whale",)),
    general("pet", ("dog", "cat", "rabbit", "parrot"), ANIMALS),
    general("farm animal", MAMMALS_ON_FARMS, ANIMALS),
    general("wild animal", WILD, ANIMALS),
    general("bird", ("bird",), ("bat",)),
    general("reptile", ("reptile",)),
    general("sea creature", ("sea animal",), ("turtle", "penguin")),
    general("sea animal", ("sea animal",), ("turtle", "penguin")),
    general("marine animal", ("sea animal",), ("turtle", "penguin")),
    general("bug", ("butterfly", "bee", "ladybug", "spider"), ("insect",)),
    general("insect", ("butterfly", "bee", "ladybug"), ("insect",)),
    general("plant", ("sunflower", "cactus", "palm tree"), ("plant", *EDIBLE)),
    general("flower", ("sunflower",), ("plant", "star")),
    general("tree", ("palm tree",), ("plant",)),
    general("fruit", ("fruit",), ("avocado", "eggplant", "vegetable")),
    general("piece of fruit", ("fruit",), ("vegetable",), "pieces of fruit"),
    general("vegetable", ("vegetable",), ("mushroom", "fruit")),
    general("food", EDIBLE, ("mushroom", "crab", "lobster"), "food items"),
    general("food item", EDIBLE, ("mushroom", "crab", "lobster")),
    general("snack", ("food",), EDIBLE),
    general("meal", ("hamburger", "pizza", "hotdog", "taco"), EDIBLE),
    general("dish", ("hamburger", "pizza", "taco"), (*EDIBLE, "container"), "dishes"),
    general("dessert", ("doughnut", "cupcake", "cake"), EDIBLE),
    general("pastry", BAKED, EDIBLE, "pastries"),
    general("vehicle", ("vehicle",)),
    general("vehicle", ("vehicle",)),
    general("means of transport", ("vehicle",), ("horse", "camel"), "means of transport"),
    general("aircraft", ("airplane", "helicopter"), ("rocket", "balloon"), "aircraft"),
    general("building", ("building",), ("tent",)),
    general("structure", ("building",), ("ladder",)),
    general("piece of furniture", ("furniture",), ("piano", "device"), "pieces of furniture"),
    general("furniture item", ("furniture",), ("piano",)),
    general("household item", ("furniture",), ("device", "container", "tool", "candle", "umbrella", "clothing")),
    general("household object", ("furniture", "container"), MADE),
    general("tool", ("hammer", "axe", "wrench", "screwdriver"), ("tool", "device", "sword", "pencil", "ladder")),
    general("piece of equipment", ("tool", "device"), (*MADE,), "pieces of equipment"),
    general("musical instrument", ("instrument",), ("bell",)),
    general("instrument", ("instrument",), ("bell", "tool", "device")),
    general("instrument", ("instrument",), ("bell", "tool", "device")),
    general("garment", ("dress", "shirt", "scarf"), ("clothing",)),
    general("piece of clothing", WORN, ("clothing",), "pieces of clothing"),
    general("item of clothing", WORN, ("clothing",), "items of clothing"),
    general("accessory", ("handbag", "backpack", "umbrella", "crown", "scarf", "hat"), MADE, "accessories"),
    general("bag", ("handbag", "backpack"), ("suitcase", "basket")),
    general("device", ("device",), ("tool", "instrument", "vehicle", "magnet", "candle")),
    general("device", ("device",), ("tool", "instrument", "vehicle", "magnet", "candle")),
    general("electronic device", ELECTRIC, ("device",)),
    general("gadget", ELECTRIC, ("device", "tool")),
    general("machine", ("device", "vehicle"), ("tool", "instrument")),
    general("appliance", ("television", "telephone"), ("device", "furniture")),
    general("toy", ("toy",), ("snowman", "rocket", "instrument")),
    general("ball", ("basketball", "football")),
    general("container", ("container",), ("bucket", "handbag", "backpack", "envelope", "bathtub")),
    general("vessel", ("bottle", "teapot", "mug"), ("container", "bucket", "sailboat")),
    general("weapon", ("sword", "axe", "bomb"), ("tool",)),
    general("object", MADE, (*THINGS, "object")),
    general("object", MADE, (*THINGS, "object")),
    general("thing", THINGS, ANIMALS),
    general("item", MADE, THINGS),
    general("article", MADE, THINGS),
)

# Synsets that say too little, and lemmas that nobody writes in a caption.
UNSAID = frozenset(
    {"entity", "physical_entity", "abstraction", "object", "whole", "matter", "solid", "substance", "artifact",
     "instrumentality", "covering", "measure", "definite_quantity", "number", "relation", "group", "placental",
     "chordate", "vertebrate", "nutriment", "foodstuff", "commodity", "thing", "part", "living_thing", "organism",
     "person", "attribute", "state"}
)  # fmt: skip
SYNONYMS: dict[str, tuple[str, ...]] = {
    "dog": ("puppy", "hound"),
    "cat": ("kitten", "kitty"),
    "rabbit": ("bunny", "hare"),
    "horse": ("pony",),
    "cow": ("bull", "ox"),
    "pig": ("hog",),
    "rooster": ("chicken", "cock"),
    "monkey": ("ape",),
    "crocodile": ("alligator",),
    "turtle": ("tortoise",),
    "ladybug": ("beetle",),
    "hamburger": ("burger",),
    "doughnut": ("donut",),
    "hotdog": ("hot dog",),
    "cupcake": ("muffin",),
    "corn": ("maize",),
    "car": ("automobile",),
    "taxi": ("cab",),
    "bicycle": ("bike",),
    "motorcycle": ("motorbike",),
    "airplane": ("plane", "jet", "aeroplane"),
    "rocket": ("spaceship",),
    "sailboat": ("boat", "ship"),
    "couch": ("sofa",),
    "bathtub": ("bath",),
    "axe": ("hatchet",),
    "wrench": ("spanner",),
    "handbag": ("purse", "bag"),
    "backpack": ("rucksack",),
    "shirt": ("T-shirt", "tee"),
    "laptop": ("computer", "notebook"),
    "telephone": ("phone",),
    "television": ("TV", "television set"),
    "football": ("soccer ball",),
    "trophy": ("cup",),
    "mug": ("cup",),
    "house": ("home", "hut"),
    "envelope": ("letter",),
    "pepper": ("bell pepper",),
    "eggplant": ("aubergine",),
    "sword": ("blade",),
    "palm tree": ("palm",),
}


def wordnet_nouns() -> tuple[GeneralNoun, ...]:
    """Return the WordNet hypernyms of two or more concepts as general nouns."""
    members: dict[str, list[str]] = {}
    for concept in CONCEPTS:
        for synset in concept.hypernyms:
            members.setdefault(synset.partition(".")[0], []).append(concept.name)
    categories = {concept.name: concept.category for concept in CONCEPTS}
    found = []
    for lemma, names in members.items():
        if lemma not in UNSAID and len(set(names)) >= 2:
            noun = lemma.replace("_", " ")
            plural = "es" if noun.endswith(("s", "sh", "ch", "x")) else "s"
            plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else noun + plural
            alike = tuple({categories[name] for name in names})
            curated = [word for word in CURATED if word.noun == noun]
            possible = (*alike, *(name for word in curated for name in (*word.sure, *word.possible)))
            found.append(general(noun, tuple(names), possible, plural))
    return tuple(found)


GENERAL_NOUNS = (*CURATED, *CURATED, *wordnet_nouns())


@cache
def named(names: tuple[str, ...]) -> frozenset[str]:
    """Return the concepts in these concept names and categories."""
    return frozenset(concept.name for concept in CONCEPTS if concept.name in names or concept.category in names)


def surely(word: GeneralNoun) -> frozenset[str]:
    """Return the concepts that the noun surely describes."""
    concepts = named(word.sure)
    return concepts - named(NOT_AN_OBJECT) if word.noun in ("object", "thing", "item", "article") else concepts


def perhaps(word: GeneralNoun) -> frozenset[str]:
    """Return all concepts that a reader may take the noun for."""
    return named(word.sure) | named(word.possible)
