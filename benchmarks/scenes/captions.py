"""Captions of the independent scenes, with the spans, true objects and tags of their phrases."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.scenes.layout import Item, side_of
from benchmarks.scenes.pictures import BLACK_AND_WHITE, TINTS
from benchmarks.scenes.words import general_words
from demo.world.captions import Kind, Phrase
from demo.world.vocabulary import CONCEPT, CONCEPTS, MASS_NOUNS

COUNTS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
PREPOSITIONS = {
    "left": ("left of", "to the left of", "on the left side of"),
    "right": ("right of", "to the right of", "on the right side of"),
    "above": ("above", "over", "higher up than"),
    "below": ("below", "underneath", "lower down than"),
    "beside": ("beside", "next to", "near", "by"),
}
LEADS = (
    "",
    "",
    "",
    "Photograph of ",
    "Here is ",
    "One can make out ",
    "A composition of ",
    "This shows ",
    "Pictured: ",
)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A reference to objects; `tags` name what makes it hard."""

    words: str  # up to the noun
    noun: str
    kind: Kind
    objects: tuple[int, ...]
    tags: frozenset[str]


class Writer:
    """A caption under construction."""

    def __init__(self) -> None:
        self.text = ""
        self.phrases: list[Phrase] = []
        self.tags: list[frozenset[str]] = []

    def say(self, words: str) -> "Writer":
        self.text += words
        return self

    def name(self, unit: Unit, *tags: str) -> "Writer":
        start, noun = len(self.text), len(self.text) + len(unit.words)
        self.text += unit.words + unit.noun
        end = len(self.text)
        self.phrases.append(
            Phrase(start=start, end=end, noun_start=noun, noun_end=end, kind=unit.kind, objects=unit.objects)
        )
        self.tags.append(unit.tags | set(tags))
        return self


def indefinite(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def units(items: Sequence[Item], rng: Random) -> list[Unit]:
    """Return references that cover all objects, in the order from left to right."""
    found, left = list[Unit](), list(range(len(items)))
    names = [item.concept for item in items]
    if len(left) > 1 and rng.random() < 0.2:
        group = general_group(names, rng)
        if group:
            found.append(group)
            left = [index for index in left if index not in group.objects]
    while left:
        same = [index for index in left if names[index] == names[left[0]]]
        left = [index for index in left if index not in same]
        looks = list(dict.fromkeys(items[index].look for index in same))
        for look in looks:
            members = tuple(index for index in same if items[index].look == look)
            found.append(unit(items, members, rng, is_contrast=len(looks) > 1))
    return sorted(found, key=lambda item: min(items[index].x for index in item.objects))


def general_group(names: Sequence[str], rng: Random) -> Unit | None:
    """Return "two animals" for all objects of a kind, if there are several."""
    for first in rng.sample(range(len(names)), len(names)):
        for _, plural in rng.sample(options := general_words({names[first]}, set()), len(options)):
            members = tuple(
                index for index, name in enumerate(names) if plural in [p for _, p in general_words({name}, set())]
            )
            others = {name for index, name in enumerate(names) if index not in members}
            if len(members) > 1 and plural in [p for _, p in general_words({names[i] for i in members}, others)]:
                tags = frozenset({"hypernym", "count"})
                return Unit(words=f"{COUNTS[len(members)]} ", noun=plural, kind="category", objects=members, tags=tags)
    return None


def unit(items: Sequence[Item], members: tuple[int, ...], rng: Random, *, is_contrast: bool) -> Unit:
    """Return a reference to objects of one concept and look."""
    item = items[members[0]]
    concept = CONCEPT[item.concept]
    tags, adjective, kind = set[str](), "", "contrast" if is_contrast else "object"
    if item.look in TINTS:
        tags.add("tinted")
    elif item.look == BLACK_AND_WHITE:
        tags.add("black and white")
    if item.look and (is_contrast or rng.random() < 0.75):
        word = rng.choice(("black-and-white", "black and white", "gray")) if item.look == BLACK_AND_WHITE else item.look
        adjective = f"{word} "
    if is_contrast:
        tags.add("told apart by colour")
    if not is_contrast and rng.random() < 0.15:
        largest = max(items, key=lambda other: other.side)
        adjective = f"{'big' if item is largest else 'small' if item.side < 0.6 * largest.side else 'fine'} {adjective}"
    noun, plural = concept.noun, concept.plural
    others = {other.concept for index, other in enumerate(items) if index not in members}
    words = general_words({item.concept}, others)
    if not is_contrast and words and rng.random() < 0.2:
        noun, plural = rng.choice(words)
        tags.add("hypernym")
        kind = "category"
    if len(members) > 1:
        tags.add("count")
        number = rng.choice((COUNTS[len(members)],) * 4 + ("a pair of" if len(members) == 2 else "several",))
        return Unit(words=f"{number} {adjective}", noun=plural, kind=kind, objects=members, tags=frozenset(tags))  # type: ignore[arg-type]
    is_some = noun == concept.noun and (concept.name in MASS_NOUNS or not concept.is_countable)
    start = f"some {adjective}" if is_some else indefinite(adjective + noun)[: -len(noun)]
    return Unit(words=start, noun=noun, kind=kind, objects=members, tags=frozenset(tags or {"plain"}))  # type: ignore[arg-type]


def write(items: Sequence[Item], place: str, rng: Random) -> Writer:
    """Write the caption of a scene; `place` describes the background."""
    parts, writer = units(items, rng), Writer()
    frame = rng.randrange(6)
    if len(parts) == 1 or frame == 0:
        listing(writer.say(rng.choice(LEADS)), parts)
    elif frame == 1 and len(parts) == 2:
        writer.say("On the left there is ").name(parts[0]).say(" and on the right ").name(parts[1])
    elif frame == 2:
        listing(writer.say("Somebody put "), parts).say(" together")
    else:
        lead = rng.choice(LEADS)
        chain(writer.say(lead), parts, items, rng, verbs=() if lead else (" is", " sits"))
    if rng.random() < 0.25:
        writer.say(f" {place}")
    if rng.random() < 0.12:
        present = {CONCEPT[item.concept].category for item in items}
        name = rng.choice([c.name for c in CONCEPTS if c.category not in present and c.is_countable])
        writer.say(", without ").name(
            Unit(words=indefinite(name)[: -len(name)], noun=name, kind="absent", objects=(), tags=frozenset())
        )
    writer.say("." if rng.random() < 0.6 else "")
    writer.text = writer.text[0].upper() + writer.text[1:] if rng.random() < 0.6 else writer.text
    return writer


def listing(writer: Writer, parts: Sequence[Unit]) -> Writer:
    for index, part in enumerate(parts):
        writer.say("" if not index else " and " if index == len(parts) - 1 else ", ").name(part)
    return writer


def chain(writer: Writer, parts: Sequence[Unit], items: Sequence[Item], rng: Random, *, verbs: tuple[str, ...]) -> None:
    """Write pairs of references joined by where the first is, as in "a cat right of a dog, and a bus below a tree"."""
    for index in range(0, len(parts), 2):
        writer.say(", and " if index else "")
        pair = list(parts[index : index + 2])
        rng.shuffle(pair)
        if len(pair) == 1:
            writer.name(pair[0])
            continue
        a, b = (items[part.objects[0]] for part in pair)
        is_single = all(len(part.objects) == 1 for part in pair)
        side = side_of(a, b) if is_single else "beside"
        words = rng.choice(PREPOSITIONS[side])
        tag = ("left or right of",) if words in ("left of", "right of") else ()
        verb = rng.choice(("", *verbs)) if len(pair[0].objects) == 1 else ""
        writer.name(pair[0], *tag).say(f"{verb} {words} ").name(pair[1], *tag)
