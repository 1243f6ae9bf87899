"""True and false captions of a scene, made as SugarCrepe and VL-CheckList make theirs: one part of a caption changes.

The wording is that of the training captions, so a false caption differs from a true one by its content only. Only
countable concepts of which a scene has one object are used. Colours are those of tinted objects, because an untinted
drawing may have any colour.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, permutations
from random import Random
from typing import Any, Final, NamedTuple

from demo.paper.scenes import is_unseen, unseen_colours, unseen_pairs
from demo.world.captions import article
from demo.world.grammar import LARGE, RELATIONS, SMALL
from demo.world.layout import Slot, relations
from demo.world.scenes import DEFAULT
from demo.world.vocabulary import COLOURS, CONCEPTS

OPPOSITE: Final = {"left": "right", "right": "left", "above": "below", "below": "above"}


class View(NamedTuple):
    """The objects of a scene that captions may mention, all its objects, and random choices."""

    singles: list[Slot]
    scene: Sequence[Slot]
    rng: Random


Captions = tuple[str, str]  # a true and a false one of one image
Maker = Callable[[View], Captions | None]


def view_of(slots: Sequence[Slot], rng: Random) -> View:
    """The view of a layout."""
    names = [slot.concept.name for slot in slots]
    singles = [slot for slot in slots if slot.concept.is_countable and names.count(slot.concept.name) == 1]
    return View(singles, slots, rng)


def mention(slot: Slot, adjective: str | None = None) -> str:
    """An object as a phrase: "a red balloon" with the adjective "red", "a balloon" without one."""
    words = f"{adjective} {slot.concept.name}" if adjective else slot.concept.name
    return f"{article(words)} {words}"


def listed(*slots: Slot) -> str:
    """All objects, as "a dog, a cat and a bell"."""
    *first, last = map(mention, slots)
    return f"{', '.join(first)} and {last}" if first else last


def joined(first: Slot, relation: str, second: Slot) -> str:
    """A caption such as "a dog above a cat"."""
    return f"{mention(first)} {RELATIONS[relation][0]} {mention(second)}"


def absent_slot(view: View, slot: Slot, beside: Slot | None = None) -> Slot:
    """The slot with a concept whose category the scene does not have; with `beside`, one that is seen together with it."""
    present = {other.concept.category for other in view.scene}
    choices = [c for c in CONCEPTS if c.is_countable and c.category not in present]
    if beside:
        choices = [c for c in choices if not is_unseen("concepts", *sorted((beside.concept.name, c.name)))]
    return replace(slot, concept=view.rng.choice(choices))


def other_colour(view: View, slot: Slot, seen: bool = False) -> str:
    """A colour that the object does not have, and that is not the name of its concept; `seen` with it, if that is true."""
    name = slot.concept.name
    choices = [colour for colour in COLOURS if colour not in (slot.colour, name)]
    return view.rng.choice([colour for colour in choices if not (seen and is_unseen("colour", colour, name))])


def maker(find: Callable[[View], Sequence[Any] | None], change: Callable[..., Captions]) -> Maker:
    """The maker that finds something in a view, if it is there, and says it and what is changed."""

    def make(view: View) -> Captions | None:
        found = find(view)
        return change(view, *found) if found else None

    return make


def related(view: View) -> tuple[Slot, str, Slot] | None:
    """Two objects with a relation that has an opposite."""
    pairs = list(permutations(view.singles, 2))
    view.rng.shuffle(pairs)
    held = ((a, name, b) for a, b in pairs for name in relations([a], [b], list(view.scene), DEFAULT))
    return next((found for found in held if found[1] in OPPOSITE), None)


def tinted(view: View, unseen: bool | None = None) -> list[Slot]:
    """A tinted object; one whose colour training never shows with it, or does, if `unseen` is given."""
    slots = [s for s in view.singles if s.colour and unseen in (None, bool(unseen_colours([s])))]
    return [view.rng.choice(slots)] if slots else []


def two_tinted(view: View) -> tuple[Slot, ...]:
    """Two objects of different colours, which are no names of their concepts."""
    for pair in permutations([slot for slot in view.singles if slot.colour], 2):
        colours, names = {slot.colour for slot in pair}, {slot.concept.name for slot in pair}
        if len(colours) == 2 and colours.isdisjoint(names):
            return pair
    return ()


def small_or_large(view: View) -> tuple[Slot, str] | None:
    """An object that is small or large, with that word."""
    short = min(DEFAULT.width, DEFAULT.height)
    found = (slot for slot in view.singles if not SMALL * short <= slot.side <= LARGE * short)
    return next(((slot, "small" if slot.side < SMALL * short else "large") for slot in found), None)


def paired(view: View, unseen: bool) -> tuple[Slot, Slot] | None:
    """Two concepts that training never shows together, or, in a scene without such pairs, does."""
    found = unseen_pairs(view.singles)
    pairs = found if unseen else [pair for pair in combinations(view.singles, 2) if pair not in found]
    return None if not pairs or (not unseen and unseen_pairs(view.scene)) else view.rng.choice(pairs)


REPLACE_ATT: Final = maker(tinted, lambda view, a: (mention(a, a.colour), mention(a, other_colour(view, a))))
REPLACE_REL: Final = maker(related, lambda view, a, name, b: (joined(a, name, b), joined(a, OPPOSITE[name], b)))

SUGARCREPE: Final[dict[str, Maker]] = {  # of each file
    "replace_obj": maker(related, lambda view, a, name, b: (joined(a, name, b), joined(a, name, absent_slot(view, b)))),
    "replace_att": REPLACE_ATT,
    "replace_rel": REPLACE_REL,
    "swap_obj": maker(related, lambda view, a, name, b: (joined(a, name, b), joined(b, name, a))),
    "swap_att": maker(
        two_tinted,
        lambda view, a, b: (
            f"{mention(a, a.colour)} and {mention(b, b.colour)}",
            f"{mention(a, b.colour)} and {mention(b, a.colour)}",
        ),
    ),
    "add_obj": maker(
        lambda view: view.singles if len(view.singles) == len(view.scene) else None,
        lambda view, *slots: (listed(*slots), listed(*slots, absent_slot(view, view.scene[0]))),
    ),
    "add_att": maker(tinted, lambda view, a: (mention(a), mention(a, other_colour(view, a)))),
}
COMBINATIONS: Final[dict[str, dict[str, Maker]]] = {
    kind: {
        "replace_obj": maker(
            partial(paired, unseen=kind == "unseen"),
            lambda view, a, b: (listed(a, b), listed(a, absent_slot(view, b, beside=a))),
        ),
        "replace_att": maker(
            partial(tinted, unseen=kind == "unseen"),
            lambda view, a: (mention(a, a.colour), mention(a, other_colour(view, a, seen=True))),
        ),
    }
    for kind in ("unseen", "seen")
}
"""Makers of files in SugarCrepe's form about pairs of concepts, and of colour and concept, that training shows or does not.
The false pair is always seen."""
VL_CHECKLIST: Final[dict[str, Maker]] = {  # of each column that concerns attributes and relations
    "Attribute/color": REPLACE_ATT,
    "Attribute/size": maker(
        small_or_large, lambda view, a, word: (mention(a, word), mention(a, "large" if word == "small" else "small"))
    ),
    "Relation/spatial": REPLACE_REL,
}


def object_columns(view: View) -> list[tuple[str, Captions]]:
    """The columns of VL-CheckList for one object, by its location and size, with an absent object as the false one.

    Location is the distance of the centre of the slot from that of the image, relative to half its diagonal: below 1/3
    center, below 2/3 mid, else margin. Size is the area of the slot relative to the image: above 1/6 large, above 1/20
    medium, else small.
    """
    if not view.singles:
        return []
    slot = view.rng.choice(view.singles)
    captions = mention(slot), mention(absent_slot(view, slot))
    width, height = DEFAULT.width, DEFAULT.height
    distance = 2 * math.hypot(slot.cx - width / 2, slot.cy - height / 2) / math.hypot(width, height)
    location = "center" if distance < 1 / 3 else "mid" if distance < 2 / 3 else "margin"
    share = slot.side**2 / (width * height)
    size = "large" if share > 1 / 6 else "medium" if share > 1 / 20 else "small"
    return [(f"Object/Location/{location}", captions), (f"Object/Size/{size}", captions)]
