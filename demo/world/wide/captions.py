"""Captions of the wide world: lists, titles, alt texts, and sentences with chains of relations."""

import re
from collections.abc import Sequence
from random import Random

from demo.world import grammar
from demo.world.captions import Draft, Mention, Phrase, article
from demo.world.layout import Slot, WorldConfig, position_of, relations
from demo.world.vocabulary import CONCEPTS
from demo.world.wide.layout import Placed
from demo.world.wide.mentions import Referrer, joined
from demo.world.wide.words import GENERAL_NOUNS, perhaps

STYLES = ("article",) * 12 + ("bare",) * 3 + ("the",) * 2 + ("digit",)
MORE_RELATIONS: dict[str, tuple[str, ...]] = {
    "left": ("left of", "left of", "at the left of", "to the left side of", "just left of", "on the left hand side of"),
    "right": ("right of", "right of", "at the right of", "to the right side of", "just right of", "right beside"),
    "above": ("directly above", "just above", "higher than", "on top of", "up above"),
    "below": ("directly below", "just below", "lower than", "at the bottom of", "down below"),
    "near": ("alongside", "adjacent to", "right next to", "very close to", "at the side of", "touching", "against"),
    "far": ("well away from", "at a distance from", "across from"),
}
NEUTRAL = (", ", " and ", " and ", " with ", " & ", " + ", " as well as ", " together with ", ", also ", " plus ")
OPENINGS = (
    *grammar.OPENINGS[:14],
    *[""] * 8,
    "photo: ",
    "a snapshot of ",
    "a painting of ",
    "clipart of ",
    "a close-up of ",
    "stock photo of ",
    "a photograph showing ",
    "an arrangement of ",
    "a collection of ",
    "the picture contains ",
    "this is ",
    "an illustration featuring ",
    "depicted are ",
    "you see ",
    "shown here: ",
    "what a nice picture of ",
)
TAILS = (
    " on a white background",
    " on a striped background",
    " against a blue wall",
    " in front of a colorful background",
    " on a checkered floor",
    ", isolated on white",
    " on a table",
    " on the ground",
    " under a gray sky",
    " in a room",
    ", vector illustration",
    ", clip art",
    " in a photo",
    " in the picture",
    ", seen from the front",
    " side by side",
    " in a row",
)
POSITIONS = {
    "left": ("to the left", "at left", "on the left-hand side"),
    "right": ("to the right", "at right", "on the right-hand side"),
    "middle": ("at the center", "in the centre"),
}


def describe(objects: Sequence[Placed], rng: Random, config: WorldConfig) -> tuple[str, list[Phrase]]:
    """Write a caption of the objects. Returns it with its phrases in the order of the text."""
    style = rng.choice(STYLES)
    mentions = Referrer(objects, rng, style).mentions()
    if len(mentions) > 2 and rng.random() < 0.12:
        mentions = mentions[:-1]
    slots = [item.slot for item in objects]
    draft = Draft()
    plain = style == "bare" or rng.random() < 0.2
    if not plain:
        opening = rng.choice(OPENINGS)
        verb = "are" if mentions[0].is_plural else "is"
        draft.add_text(opening.replace("{is_a}", verb))
        if not opening and len(mentions) > 1 and rng.random() < 0.35:
            return finish(sentences(draft, mentions, slots, rng, config), objects, rng)
    for index, mention in enumerate(mentions):
        if index:
            draft.add_text(
                connection(mentions[index - 1], mention, slots, rng, config, plain, index == len(mentions) - 1)
            )
        add(draft, mention)
        if not plain and len(mention.objects) == 1 and rng.random() < 0.12:
            draft.add_text(" " + place(slots[mention.objects[0]], rng, config))
    if rng.random() < 0.25:
        draft.add_text(rng.choice(TAILS))
    return finish(draft, objects, rng)


def add(draft: Draft, mention: Mention, *, repeated: bool = False) -> None:
    before = joined("the" if repeated else mention.determiner, mention.adjectives)
    draft.add_phrase(mention.kind, mention.objects, f"{before} " if before else "", mention.noun)


def place(slot: Slot, rng: Random, config: WorldConfig) -> str:
    name = position_of(slot, config)
    return rng.choice((*grammar.POSITIONS[name], *POSITIONS.get(name, ())))


def relation(first: Mention, second: Mention, slots: Sequence[Slot], rng: Random, config: WorldConfig) -> str:
    """Draw words for a relation that holds from all objects of `first` to all of `second`, or ""."""
    a, b = [slots[index] for index in first.objects], [slots[index] for index in second.objects]
    names = relations(a, b, list(slots), config)
    return rng.choice((*grammar.RELATIONS[(name := rng.choice(names))], *MORE_RELATIONS[name])) if names else ""


def connection(
    first: Mention, second: Mention, slots: Sequence[Slot], rng: Random, config: WorldConfig, plain: bool, last: bool
) -> str:
    """Draw the text between two mentions: a true relation, or a word such as "and"."""
    if plain:
        return rng.choice((", ", ", ", " and ", " & ", " - ", ". ", " / "))
    words = relation(first, second, slots, rng, config)
    if words and rng.random() < 0.6:
        verb = rng.choice(("", "", "", f"{'are' if first.is_plural else 'is'} ", "that is ", "placed ", "sitting "))
        return f" {verb}{words} "
    if not last:
        return rng.choice((", ", ", ", *NEUTRAL))
    return rng.choice((" and ", " and ", ", and ", *NEUTRAL))


def sentences(
    draft: Draft, mentions: Sequence[Mention], slots: Sequence[Slot], rng: Random, config: WorldConfig
) -> Draft:
    """Write one clause for each mention; a clause may refer to an earlier mention again."""
    for index, mention in enumerate(mentions):
        if index:
            draft.add_text(rng.choice((". ", ". ", ", and ", "; ", ", while ")))
        verb = "are" if mention.is_plural else "is"
        earlier = mentions[rng.randrange(index)] if index else None
        words = relation(mention, earlier, slots, rng, config) if earlier else ""
        at = place(slots[mention.objects[0]], rng, config) if len(mention.objects) == 1 else ""
        kind = rng.random()
        if earlier and words and kind < 0.7:
            if kind < 0.25:
                draft.add_text(f"{words} ")
                add(draft, earlier, repeated=True)
                draft.add_text(f" {verb} ")
                add(draft, mention)
            else:
                if kind < 0.4:
                    draft.add_text(f"there {verb} ")
                add(draft, mention)
                draft.add_text(f" {verb if kind >= 0.4 else ''} {words} ".replace("  ", " "))
                add(draft, earlier, repeated=True)
        elif at and kind < 0.85:
            draft.add_text(f"{at} {rng.choice(('there', 'of the picture', ''))} {verb} ".replace("  ", " "))
            add(draft, mention)
        else:
            draft.add_text(f"there {verb} ")
            add(draft, mention)
            draft.add_text(f" {at}" if at and rng.random() < 0.4 else "")
    return draft


def finish(draft: Draft, objects: Sequence[Placed], rng: Random) -> tuple[str, list[Phrase]]:
    """Add phrases without boxes, case and punctuation. No character moves, so the spans remain valid."""
    names = {item.slot.concept.name for item in objects}
    if rng.random() < 0.12:
        draft.add_text(rng.choice(grammar.ABSTRACT_TAILS[:10]).replace("{z}", ""))
        draft.add_phrase("abstract", (), "", rng.choice(grammar.ABSTRACT_NOUNS))
    if rng.random() < 0.15:
        draft.add_text(
            rng.choice((", but no ", " and no ", ", without ", ", far from ", ". there is no ", " but not "))
        )
        noun = absent(names, rng)
        is_no = draft.text.endswith("no ")
        draft.add_phrase("absent", (), "" if is_no else f"{article(noun)} ", noun)
    text = draft.text
    kind = rng.random()
    if kind < 0.35:
        text = text[:1].upper() + re.sub(r"(\. )([a-z])", lambda match: match[1] + match[2].upper(), text[1:])
    elif kind < 0.41:
        text = re.sub(r"\b[a-z]", lambda match: match[0].upper(), text)
    elif kind < 0.43:
        text = text.upper()
    if rng.random() < 0.4:
        text += rng.choice((".", ".", ".", "!"))
    return text, draft.phrases


def absent(names: set[str], rng: Random) -> str:
    """Draw a noun that describes nothing in the picture: a concept or, in a third of the cases, a general noun."""
    if rng.random() < 0.33:
        words = [word for word in GENERAL_NOUNS if not names & perhaps(word)]
        if words:
            return rng.choice(words).noun
    return rng.choice([c for c in CONCEPTS if c.name not in names and c.is_countable]).name
