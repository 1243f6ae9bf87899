"""References to the objects of a wide scene: by name, by a general noun, by number, colour or size."""

from collections.abc import Sequence
from random import Random

from demo.world.captions import Kind, Mention, article
from demo.world.grammar import NUMBERS
from demo.world.vocabulary import DRAWN_AS_SEVERAL
from demo.world.wide.layout import Placed
from demo.world.wide.looks import alike, words_for
from demo.world.wide.words import GENERAL_NOUNS, SYNONYMS, GeneralNoun, perhaps, surely

SMALL_WORDS, LARGE_WORDS = ("small", "little", "tiny", "smaller"), ("large", "big", "huge", "bigger")
UNCOUNTABLE = ("food", "clothing", "furniture", "equipment", "produce", "fruit", "footwear", "electronic equipment")
# without information
VAGUE_WORDS = ("nice", "cute", "old", "new", "shiny", "single", "lovely", "simple", "pretty", "funny", "colorful")


def joined(*words: str) -> str:
    return " ".join(word for word in words if word)


class Referrer:
    """Builds the mentions of one scene. `style` is the caption's use of determiners: article, bare, digit or the."""

    def __init__(self, objects: Sequence[Placed], rng: Random, style: str) -> None:
        self.objects, self.rng, self.style = objects, rng, style
        self.names = [item.slot.concept.name for item in objects]
        self.taken: set[str] = set()  # concepts that a general noun of the caption may mean

    def mentions(self) -> list[Mention]:
        """Return mentions that together cover each object once."""
        rng = self.rng
        remaining, found = list(range(len(self.objects))), list[Mention]()
        if len(remaining) > 1 and rng.random() < 0.3:
            group = self.general_group()
            if group:
                found.append(group)
                remaining = [index for index in remaining if index not in group.objects]
        while remaining:
            same = [index for index in remaining if self.names[index] == self.names[remaining[0]]]
            remaining = [index for index in remaining if index not in same]
            found += self.same_concept(same)
        for number, mention in enumerate(found):
            found[number] = self.generalised(mention, found)
        rng.shuffle(found)
        return found

    def general_group(self) -> Mention | None:
        """Return "two animals" for all objects that a general noun describes, if there are two or more."""
        for word in self.rng.sample(GENERAL_NOUNS, len(GENERAL_NOUNS)):
            members = [index for index, name in enumerate(self.names) if name in surely(word)]
            maybe = [index for index, name in enumerate(self.names) if name in perhaps(word)]
            if len(members) > 1 and members == maybe:
                self.taken |= perhaps(word)
                return self.plural("category", members, word.plural, self.shared_adjective(members))
        return None

    def shared_adjective(self, members: Sequence[int]) -> str:
        looks = {self.objects[index].look.colour for index in members}
        colour = self.objects[members[0]].look
        return words_for(colour, self.rng) if len(looks) == 1 and self.rng.random() < 0.7 else ""

    def plural(self, kind: Kind, members: Sequence[int], noun: str, adjectives: str) -> Mention:
        rng, n = self.rng, len(members)
        options = [NUMBERS[n]] * 6 + [str(n)] + ["some", "several" if n > 2 else "both", ""]
        options += ["a pair of", "a couple of"] if n == 2 else ["a group of", "a few", "a bunch of", "many"]
        determiner = rng.choice(options) if self.style != "the" else f"the {NUMBERS[n]}"
        if kind == "contrast" and determiner in ("", "some", "several", "many", "both"):
            determiner = NUMBERS[n]
        return Mention(
            kind=kind, objects=tuple(members), determiner=determiner, adjectives=adjectives, noun=noun, is_plural=True
        )

    def same_concept(self, members: list[int]) -> list[Mention]:
        """Return the mentions of all objects of one concept: a count, or one for each colour or size."""
        rng, objects = self.rng, self.objects
        concept = objects[members[0]].slot.concept
        if len(members) == 1:
            return [self.single(members[0], "object", self.adjectives(members[0]))]
        by_colour: dict[str | None, list[int]] = {}
        for index in members:
            by_colour.setdefault(objects[index].look.colour, []).append(index)
        colours = list(by_colour)
        distinct = all(not alike(a, b) for i, a in enumerate(colours) for b in colours[:i])
        if len(colours) > 1 and distinct and rng.random() < 0.75:
            found = list[Mention]()
            for group in by_colour.values():
                word = words_for(objects[group[0]].look, rng)
                if len(group) == 1:
                    found.append(self.single(group[0], "contrast", word))
                else:
                    found.append(self.plural("contrast", group, concept.plural, word))
            return found
        sides = sorted(members, key=lambda index: objects[index].slot.side)
        if len(members) == 2 and objects[sides[1]].slot.side > 1.6 * objects[sides[0]].slot.side and rng.random() < 0.6:
            return [
                self.single(sides[0], "contrast", rng.choice(SMALL_WORDS)),
                self.single(sides[1], "contrast", rng.choice(LARGE_WORDS)),
            ]
        return [self.plural("count", members, concept.plural, self.shared_adjective(members))]

    def adjectives(self, index: int) -> str:
        """Draw adjectives of a single object: mostly its look, at times its size or a word without information."""
        rng, item = self.rng, self.objects[index]
        colour = words_for(item.look, rng) if rng.random() < 0.72 else ""
        side, others = item.slot.side, [other.slot.side for other in self.objects]
        size = ""
        if rng.random() < 0.22:
            if side >= 0.9 * max(others):
                size = rng.choice(LARGE_WORDS[:3])
            elif side <= 1.1 * min(others):
                size = rng.choice(SMALL_WORDS[:3])
            else:
                size = "medium-sized" if rng.random() < 0.3 else ""
        elif rng.random() < 0.06:
            size = rng.choice(VAGUE_WORDS)
        return joined(size, colour)

    def single(self, index: int, kind: Kind, adjectives: str, noun: str = "") -> Mention:
        concept = self.objects[index].slot.concept
        if not noun:
            noun = concept.noun
            if concept.name in SYNONYMS and self.rng.random() < 0.12:
                noun = self.rng.choice(SYNONYMS[concept.name])
        match self.style:
            case "bare":
                determiner = ""
            case "the":
                determiner = "the"
            case "digit":
                determiner = self.rng.choice(("1", "one", "one"))
            case _:
                determiner = article(joined(adjectives, noun))
        is_plural = concept.name in DRAWN_AS_SEVERAL and noun == concept.noun
        if (is_plural or not concept.is_countable) and noun == concept.noun and self.style in ("article", "digit"):
            determiner = "some"
        if noun in UNCOUNTABLE and determiner in ("a", "an", "1", "one"):
            determiner = self.rng.choice(("some", "some", "", "a"))
        return Mention(
            kind=kind, objects=(index,), determiner=determiner, adjectives=adjectives, noun=noun, is_plural=is_plural
        )

    def generalised(self, mention: Mention, mentions: Sequence[Mention]) -> Mention:
        """Replace the noun by a general one, with probability 0.3, where it then still refers to the same objects.

        The noun may describe no other object of the scene or, in a third of the cases, none without a name of its own.
        """
        rng = self.rng
        if mention.kind not in ("object", "count") or rng.random() > 0.3:
            return mention
        inside = {self.names[index] for index in mention.objects}
        if inside & self.taken:
            return mention
        outside = {self.names[index] for index in range(len(self.names)) if index not in mention.objects}
        if rng.random() < 0.33:
            general = {index for other in mentions if other.kind == "category" for index in other.objects}
            outside = {self.names[index] for index in general}
        fitting: list[GeneralNoun] = [
            word for word in GENERAL_NOUNS if inside <= surely(word) and not outside & perhaps(word)
        ]
        if not fitting:
            return mention
        word = rng.choice(fitting)
        self.taken |= perhaps(word)
        if len(mention.objects) > 1:
            return self.plural("category", mention.objects, word.plural, mention.adjectives)
        return self.single(mention.objects[0], "category", mention.adjectives, word.noun)
