"""Captions in natural English for a layout, with the character spans of their phrases."""

import re
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from demo.world import grammar
from demo.world.layout import Slot, WorldConfig, position_of, relations
from demo.world.vocabulary import CONCEPTS, category_nouns

Kind = Literal["object", "count", "category", "contrast", "absent", "abstract"]


@dataclass(frozen=True, kw_only=True)
class Phrase:
    """A noun phrase of a caption. Spans are character offsets [start, end); a noun's span includes compounds."""

    start: int
    end: int
    noun_start: int
    noun_end: int
    kind: Kind
    objects: tuple[int, ...]  # indices into the scene's objects; empty for "absent" and "abstract"


@dataclass(frozen=True)
class Mention:
    """A reference to one object, to several of one kind, or to one that its colour distinguishes from the others."""

    kind: Kind
    objects: tuple[int, ...]
    determiner: str  # "a", "some", "two", ...; empty for a bare noun
    adjectives: str
    noun: str
    is_plural: bool = False


@dataclass
class Draft:
    """A caption under construction: its text and its phrases."""

    text: str = ""
    phrases: list[Phrase] = field(default_factory=list)

    def add_text(self, words: str) -> None:
        self.text += words

    def add_phrase(self, kind: Kind, objects: tuple[int, ...], before: str, noun: str) -> None:
        start = len(self.text)
        self.text += before + noun
        self.phrases.append(
            Phrase(
                start=start,
                end=len(self.text),
                noun_start=start + len(before),
                noun_end=len(self.text),
                kind=kind,
                objects=objects,
            )
        )


def article(words: str) -> str:
    """Return "a" or "an". The first letter suffices for all words of the vocabulary."""
    return "an" if words.startswith(("a", "e", "i", "o", "u")) else "a"


def build_mentions(slots: list[Slot], rng: Random, config: WorldConfig) -> list[Mention]:
    """Build a mention of each object, or one for all objects of the same concept and colour."""
    groups: dict[str, list[int]] = {}
    for index, slot in enumerate(slots):
        groups.setdefault(slot.concept.name, []).append(index)
    mentions = []
    for members in groups.values():
        colours = {slots[index].colour for index in members}
        if len(members) > 1 and len(colours) == 1:
            mentions.append(count_mention(slots, members))
        else:
            mentions += [single_mention(slots, index, len(members) > 1, rng, config) for index in members]
    return mentions


def count_mention(slots: list[Slot], members: list[int]) -> Mention:
    """Build a mention such as "two red balloons"."""
    first = slots[members[0]]
    adjectives = f"{first.colour} " if first.colour else ""
    number = grammar.NUMBERS[len(members)]
    return Mention("count", tuple(members), number, adjectives, first.concept.plural, is_plural=True)


def single_mention(slots: list[Slot], index: int, is_contrast: bool, rng: Random, config: WorldConfig) -> Mention:
    """Build a mention of one object: by its noun, by a category noun, or with a size adjective."""
    slot = slots[index]
    kind: Kind = "contrast" if is_contrast else "object"
    noun, adjectives = slot.concept.noun, f"{slot.colour} " if slot.colour else ""
    others = [other.concept for other in slots if other is not slot]
    names = category_nouns(slot.concept, others)
    # The factor 1.5 compensates for the third of all objects that have no category noun.
    if not is_contrast and names and rng.random() < 1.5 * config.category_share:
        kind, noun = "category", rng.choice(names)
    elif not is_contrast and rng.random() < 0.2:
        share = slot.side / min(config.width, config.height)
        if share < grammar.SMALL:
            adjectives = f"{rng.choice(grammar.SMALL_WORDS)} {adjectives}"
        elif share > grammar.LARGE:
            adjectives = f"{rng.choice(grammar.LARGE_WORDS)} {adjectives}"
    determiner = article(adjectives + noun) if slot.concept.is_countable or kind == "category" else "some"
    is_plural = determiner == "some" and noun.endswith("s")
    return Mention(kind, (index,), determiner, adjectives, noun, is_plural=is_plural)


FIELD = re.compile(r"\{(\w+)\}")
SHARED_RELATION = "{ab} {b} and {c}"  # "next to a dog and a cat" implies that {a} is next to both


class CaptionWriter:
    """Fills templates with the mentions of one scene and the relations between them."""

    def __init__(self, slots: list[Slot], mentions: list[Mention], rng: Random, config: WorldConfig) -> None:
        self.slots, self.rng, self.config = slots, rng, config
        self.mentions = dict(zip("abcd", mentions, strict=False))
        self.draft = Draft()

    def relations(self, pair: str) -> list[str]:
        """Return the relations that hold between all objects of two mentions, given by their letters."""
        first, second = ([self.slots[index] for index in self.mentions[letter].objects] for letter in pair)
        return relations(first, second, self.slots, self.config)

    def is_true(self, template: str) -> bool:
        """True if the picture satisfies every relation and position of the template."""
        for name in FIELD.findall(template):
            if name in ("ab", "ba", "bc", "ca", "cb", "cd", "dc") and not self.relations(name):
                return False
            if name.startswith("at_") and len(self.mentions[name[3]].objects) > 1:
                return False
        return not template.endswith(SHARED_RELATION) or bool(self.shared_relations())

    def shared_relations(self) -> list[str]:
        """Return the relations that hold from {a} to both {b} and {c}."""
        return [name for name in self.relations("ab") if name in self.relations("ac")]

    def write(self, template: str) -> None:
        """Append the template to the draft with its fields filled."""
        for part in re.split(r"(\{\w+\})", template):
            if part.startswith("{"):
                self.write_field(part[1:-1], is_shared=template.endswith(SHARED_RELATION))
            else:
                self.draft.add_text(part)

    def write_field(self, name: str, is_shared: bool) -> None:
        """Append the value of one field; with `is_shared`, a relation must also hold to the third mention."""
        draft, rng = self.draft, self.rng
        if name in self.mentions:
            mention = self.mentions[name]
            draft.add_phrase(mention.kind, mention.objects, f"{mention.determiner} {mention.adjectives}", mention.noun)
            return
        match name.split("_"):
            case ["x"]:
                self.write_absent()
            case ["z"]:
                draft.add_phrase("abstract", (), "", rng.choice(grammar.ABSTRACT_NOUNS))
            case ["the", "z"]:
                draft.add_phrase("abstract", (), "the ", rng.choice(grammar.ABSTRACT_NOUNS))
            case ["the", letter]:
                mention = self.mentions[letter]
                number = f"{mention.determiner} " if mention.kind == "count" else ""
                draft.add_phrase(mention.kind, mention.objects, f"the {number}{mention.adjectives}", mention.noun)
            case ["is", letter]:
                draft.add_text("are" if self.mentions[letter].is_plural else "is")
            case ["it", letter]:
                draft.add_text("them" if self.mentions[letter].is_plural else "it")
            case ["at", letter]:
                slot = self.slots[self.mentions[letter].objects[0]]
                draft.add_text(rng.choice(grammar.POSITIONS[position_of(slot, self.config)]))
            case [pair]:
                names = self.shared_relations() if is_shared else self.relations(pair)
                draft.add_text(rng.choice(grammar.RELATIONS[rng.choice(names)]))

    def write_absent(self) -> None:
        """Append a concept whose category is absent from the scene. A preceding "no" becomes its determiner."""
        present = {slot.concept.category for slot in self.slots}
        concept = self.rng.choice([c for c in CONCEPTS if c.category not in present and c.is_countable])
        if self.draft.text.endswith("no "):
            self.draft.text = self.draft.text[: -len("no ")]
            self.draft.add_phrase("absent", (), "no ", concept.name)
        else:
            self.draft.add_phrase("absent", (), f"{article(concept.name)} ", concept.name)


def write_caption(slots: list[Slot], rng: Random, config: WorldConfig) -> tuple[str, list[Phrase]]:
    """Write a caption of the layout. Returns it with its phrases in the order of the text."""
    mentions = build_mentions(slots, rng, config)
    rng.shuffle(mentions)
    if len(mentions) > 2 and rng.random() < 0.15:
        mentions = mentions[:-1]  # real captions do not mention every object
    writer = CaptionWriter(slots, mentions[:4], rng, config)
    n = len(writer.mentions)
    as_sentence = rng.random() < 0.35
    templates = grammar.SENTENCES[n] if as_sentence else grammar.NOUN_PHRASES[n]
    usable = [template for template in templates if writer.is_true(template)]
    if not usable:
        as_sentence, usable = False, [template for template in grammar.NOUN_PHRASES[n] if writer.is_true(template)]
    add_absent, add_abstract = rng.random() < config.absent_share, rng.random() < config.abstract_share
    if not as_sentence:
        openings = [opening for opening in grammar.OPENINGS if "{the_z}" not in opening or add_abstract]
        opening = rng.choice(openings)
        add_abstract = add_abstract and "{the_z}" not in opening
        writer.write(opening)
    writer.write(rng.choice(usable))
    if not add_absent and rng.random() < 0.08:
        writer.write(rng.choice(grammar.TIME_TAILS))
    if add_abstract:
        writer.write(rng.choice(grammar.ABSTRACT_TAILS))
    if add_absent:
        writer.write(rng.choice(grammar.ABSENT_TAILS))
    return punctuate(writer.draft, rng)


def punctuate(draft: Draft, rng: Random) -> tuple[str, list[Phrase]]:
    """Add capitals and a full stop to some captions. No character moves, so the spans remain valid."""
    text = draft.text
    if ". " in text or rng.random() < 0.4:
        text = re.sub(r"(^|\. )([a-z])", lambda match: match[1] + match[2].upper(), text)
        if ". " in text or rng.random() < 0.7:
            text += "."
    return text, draft.phrases
