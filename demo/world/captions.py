"""Captions in natural English for a layout, with the spans of what they speak of."""

import re
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from demo.world import grammar
from demo.world.layout import Slot, WorldConfig
from demo.world.relations import place_of, relations
from demo.world.vocabulary import CONCEPTS, category_nouns

Kind = Literal["object", "count", "category", "contrast", "absent", "abstract"]
GROUNDED_KINDS: tuple[Kind, ...] = ("object", "count", "category", "contrast")  # the kinds that have boxes


@dataclass(frozen=True, kw_only=True)
class Phrase:
    """A noun phrase of a caption. Spans are character offsets [start, end); the noun's is that of "palm tree"."""

    start: int
    end: int
    noun_start: int
    noun_end: int
    kind: Kind
    objects: tuple[int, ...]  # indices into the scene's objects; none for "absent" and "abstract"


@dataclass(frozen=True, kw_only=True)
class Mention:
    """Something to speak of: one object, several alike, or one that its colour tells from another."""

    kind: Kind
    objects: tuple[int, ...]
    determiner: str  # "a", "some", "two", ...
    adjectives: str
    noun: str

    @property
    def plural(self) -> bool:
        return self.kind == "count" or (self.determiner == "some" and self.noun.endswith("s"))


@dataclass
class Draft:
    """A caption under way."""

    text: str = ""
    phrases: list[Phrase] = field(default_factory=list)

    def say(self, words: str) -> None:
        self.text += words

    def name(self, kind: Kind, objects: tuple[int, ...], before: str, noun: str) -> None:
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
    """Which of "a" and "an"; no word of the vocabulary begins with a vowel letter that sounds otherwise."""
    return "an" if words[0] in "aeiou" else "a"


def mentions_of(slots: list[Slot], rng: Random, config: WorldConfig) -> list[Mention]:
    """One mention for each thing there is to speak of."""
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
    first = slots[members[0]]
    adjectives = f"{first.colour} " if first.colour else ""
    number = grammar.NUMBERS[len(members)]
    return Mention(
        kind="count", objects=tuple(members), determiner=number, adjectives=adjectives, noun=first.concept.plural
    )


def single_mention(slots: list[Slot], index: int, contrast: bool, rng: Random, config: WorldConfig) -> Mention:
    slot = slots[index]
    kind: Kind = "contrast" if contrast else "object"
    noun, adjectives = slot.concept.noun, f"{slot.colour} " if slot.colour else ""
    others = [other.concept for other in slots if other is not slot]
    names = category_nouns(slot.concept, others)
    # Half as often again, as a third of all objects have no category noun to choose.
    if not contrast and names and rng.random() < 1.5 * config.category_share:
        kind, noun = "category", rng.choice(names)
    elif not contrast and rng.random() < 0.2:
        share = slot.side / min(config.width, config.height)
        if share < grammar.SMALL:
            adjectives = f"{rng.choice(grammar.SMALL_WORDS)} {adjectives}"
        elif share > grammar.LARGE:
            adjectives = f"{rng.choice(grammar.LARGE_WORDS)} {adjectives}"
    determiner = article(adjectives + noun) if slot.concept.countable or kind == "category" else "some"
    return Mention(kind=kind, objects=(index,), determiner=determiner, adjectives=adjectives, noun=noun)


FIELD = re.compile(r"\{(\w+)\}")
SHARED = "{ab} {b} and {c}"  # "next to a dog and a cat" claims that it is next to both


class Teller:
    """Fills templates for one scene: knows its mentions by letter, and which relations hold between them."""

    def __init__(self, slots: list[Slot], mentions: list[Mention], rng: Random, config: WorldConfig) -> None:
        self.slots, self.rng, self.config = slots, rng, config
        self.by_letter = dict(zip("abcd", mentions, strict=False))
        self.draft = Draft()

    def relations(self, pair: str) -> list[str]:
        """Relations that hold between two letters' mentions, for all of their objects."""
        first, second = ([self.slots[index] for index in self.by_letter[letter].objects] for letter in pair)
        return relations(first, second, self.slots, self.config)

    def fits(self, template: str) -> bool:
        """Whether all that the template says is true."""
        for name in FIELD.findall(template):
            if name in ("ab", "ba", "bc", "ca", "cb", "cd", "dc") and not self.relations(name):
                return False
            if name.startswith("at_") and len(self.by_letter[name[3]].objects) > 1:
                return False
        return not template.endswith(SHARED) or bool(self.shared_relations())

    def shared_relations(self) -> list[str]:
        """What holds from the first to both the second and the third."""
        return [name for name in self.relations("ab") if name in self.relations("ac")]

    def tell(self, template: str) -> None:
        """Append the template to the draft, its fields filled."""
        for part in re.split(r"(\{\w+\})", template):
            if part.startswith("{"):
                self.fill(part[1:-1], shared=template.endswith(SHARED))
            else:
                self.draft.say(part)

    def fill(self, name: str, shared: bool) -> None:
        """Append what one field stands for; `shared` asks for a relation that also holds to the third mention."""
        draft, rng = self.draft, self.rng
        if name in self.by_letter:
            mention = self.by_letter[name]
            draft.name(mention.kind, mention.objects, f"{mention.determiner} {mention.adjectives}", mention.noun)
            return
        match name.split("_"):
            case ["x"]:
                self.name_absent()
            case ["z"]:
                draft.name("abstract", (), "", rng.choice(grammar.ABSTRACT_NOUNS))
            case ["the", "z"]:
                draft.name("abstract", (), "the ", rng.choice(grammar.ABSTRACT_NOUNS))
            case ["the", letter]:
                mention = self.by_letter[letter]
                number = f"{mention.determiner} " if mention.kind == "count" else ""
                draft.name(mention.kind, mention.objects, f"the {number}{mention.adjectives}", mention.noun)
            case ["is", letter]:
                draft.say("are" if self.by_letter[letter].plural else "is")
            case ["it", letter]:
                draft.say("them" if self.by_letter[letter].plural else "it")
            case ["at", letter]:
                slot = self.slots[self.by_letter[letter].objects[0]]
                draft.say(rng.choice(grammar.PLACES[place_of(slot, self.config)]))
            case [pair]:
                names = self.shared_relations() if shared else self.relations(pair)
                draft.say(rng.choice(grammar.RELATIONS[rng.choice(names)]))

    def name_absent(self) -> None:
        """Something drawable of a category that is not there. After "no" the determiner is already said."""
        present = {slot.concept.category for slot in self.slots}
        concept = self.rng.choice([c for c in CONCEPTS if c.category not in present and c.countable])
        if self.draft.text.endswith("no "):
            self.draft.text = self.draft.text[: -len("no ")]
            self.draft.name("absent", (), "no ", concept.name)
        else:
            self.draft.name("absent", (), f"{article(concept.name)} ", concept.name)


def tell(slots: list[Slot], rng: Random, config: WorldConfig) -> tuple[str, list[Phrase]]:
    """A caption of the layout, and its phrases in the order of the text."""
    mentions = mentions_of(slots, rng, config)
    rng.shuffle(mentions)
    if len(mentions) > 2 and rng.random() < 0.15:
        mentions = mentions[:-1]  # captions do not tell everything
    teller = Teller(slots, mentions[:4], rng, config)
    n = len(teller.by_letter)
    as_sentence = rng.random() < 0.35
    templates = grammar.SENTENCES[n] if as_sentence else grammar.NOUN_PHRASES[n]
    fitting = [template for template in templates if teller.fits(template)]
    if not fitting:
        as_sentence, fitting = False, [template for template in grammar.NOUN_PHRASES[n] if teller.fits(template)]
    wants_absent, wants_abstract = rng.random() < config.absent_share, rng.random() < config.abstract_share
    if not as_sentence:
        openings = [opening for opening in grammar.OPENINGS if "{the_z}" not in opening or wants_abstract]
        opening = rng.choice(openings)
        wants_abstract = wants_abstract and "{the_z}" not in opening
        teller.tell(opening)
    teller.tell(rng.choice(fitting))
    if not wants_absent and rng.random() < 0.08:
        teller.tell(rng.choice(grammar.TIME_TAILS))
    if wants_abstract:
        teller.tell(rng.choice(grammar.ABSTRACT_TAILS))
    if wants_absent:
        teller.tell(rng.choice(grammar.ABSENT_TAILS))
    return polish(teller.draft, rng)


def polish(draft: Draft, rng: Random) -> tuple[str, list[Phrase]]:
    """Capitals and a full stop, for some captions as on the web; none of it moves a character."""
    text = draft.text
    if ". " in text or rng.random() < 0.4:
        text = re.sub(r"(^|\. )([a-z])", lambda match: match[1] + match[2].upper(), text)
        if ". " in text or rng.random() < 0.7:
            text += "."
    return text, draft.phrases
