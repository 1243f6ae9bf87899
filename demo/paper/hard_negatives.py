"""True and false captions of a scene, made as SugarCrepe and VL-CheckList make theirs: one part of a caption changes.

The wording is that of the training captions, so a false caption differs from a true one by its content only. Only
countable concepts of which a scene has one object are used. Colours are those of tinted objects, because an untinted
drawing may have any colour.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from random import Random
from typing import Final, NamedTuple

from demo.paper.scenes import is_unseen, unseen_colours, unseen_pairs
from demo.world.captions import article
from demo.world.grammar import LARGE, RELATIONS, SMALL
from demo.world.layout import Slot, WorldConfig, relations
from demo.world.vocabulary import COLOURS, CONCEPTS, Concept

OPPOSITE: Final = {"left": "right", "right": "left", "above": "below", "below": "above"}


class Captions(NamedTuple):
    """A true and a false caption of one image."""

    true: str
    false: str


class View(NamedTuple):
    """The objects of a scene that captions may mention, all its objects, its canvas, and random choices."""

    singles: list[Slot]
    scene: Sequence[Slot]
    config: WorldConfig
    rng: Random


def view_of(slots: Sequence[Slot], config: WorldConfig, rng: Random) -> View:
    """The view of a layout."""
    names = [slot.concept.name for slot in slots]
    singles = [slot for slot in slots if slot.concept.is_countable and names.count(slot.concept.name) == 1]
    return View(singles, slots, config, rng)


def mention(slot: Slot, adjective: str | None = None) -> str:
    """An object as a phrase: "a red balloon" with the adjective "red", "a balloon" without one."""
    words = f"{adjective} {slot.concept.name}" if adjective else slot.concept.name
    return f"{article(words)} {words}"


def absent_slot(view: View, slot: Slot, beside: Slot | None = None) -> Slot:
    """The slot with a concept whose category the scene does not have; with `beside`, one that is seen together with it."""
    present = {other.concept.category for other in view.scene}
    choices: list[Concept] = [c for c in CONCEPTS if c.is_countable and c.category not in present]
    if beside:
        choices = [c for c in choices if not is_unseen("concepts", *sorted((beside.concept.name, c.name)))]
    return replace(slot, concept=view.rng.choice(choices))


def other_colour(view: View, slot: Slot, seen: bool = False) -> str:
    """A colour that the object does not have, and that is not the name of its concept; `seen` with it, if that is true."""
    name = slot.concept.name
    choices = [colour for colour in COLOURS if colour not in (slot.colour, name)]
    return view.rng.choice([colour for colour in choices if not (seen and is_unseen("colour", colour, name))])


def related(view: View) -> tuple[Slot, Slot, str] | None:
    """Two objects with a relation that has an opposite; None without one."""
    pairs = list(permutations(view.singles, 2))
    view.rng.shuffle(pairs)
    for first, second in pairs:
        for name in relations([first], [second], list(view.scene), view.config):
            if name in OPPOSITE:
                return first, second, name
    return None


def joined(first: str, relation: str, second: str) -> str:
    """A caption such as "a dog above a cat"."""
    return f"{first} {RELATIONS[relation][0]} {second}"


def relational(change: Callable[[View, Slot, str, Slot], str]) -> "Maker":
    """The maker that says a relation of two objects, and as the false caption what `change` makes of it."""

    def make(view: View) -> Captions | None:
        if not (found := related(view)):
            return None
        first, second, name = found
        return Captions(joined(mention(first), name, mention(second)), change(view, first, name, second))

    return make


def tinted(change: Callable[[View, Slot], Captions]) -> "Maker":
    """The maker that says something about a tinted object."""

    def make(view: View) -> Captions | None:
        slots = [slot for slot in view.singles if slot.colour]
        return change(view, view.rng.choice(slots)) if slots else None

    return make


def swap_att(view: View) -> Captions | None:
    """The colours of two objects change places."""
    for first, second in permutations([slot for slot in view.singles if slot.colour], 2):
        if first.colour != second.colour and {first.colour, second.colour}.isdisjoint(
            {first.concept.name, second.concept.name}
        ):
            true = f"{mention(first, first.colour)} and {mention(second, second.colour)}"
            return Captions(true, f"{mention(first, second.colour)} and {mention(second, first.colour)}")
    return None


def listed(slots: Sequence[Slot]) -> str:
    """All objects, as "a dog, a cat and a bell"."""
    *first, last = map(mention, slots)
    return f"{', '.join(first)} and {last}" if first else last


def add_obj(view: View) -> Captions | None:
    """An absent object is added to all those of the scene."""
    if len(view.singles) < len(view.scene):
        return None
    more = absent_slot(view, view.scene[0])
    return Captions(listed(view.singles), listed([*view.singles, more]))


def combined(unseen: bool) -> "Maker":
    """The maker that replaces one of two concepts, which training never, or does, show together; the false pair is seen."""

    def make(view: View) -> Captions | None:
        found = unseen_pairs(view.singles)
        pairs = found if unseen else [pair for pair in combinations(view.singles, 2) if pair not in found]
        if not pairs or (not unseen and unseen_pairs(view.scene)):
            return None
        first, second = view.rng.choice(pairs)
        return Captions(listed([first, second]), listed([first, absent_slot(view, second, beside=first)]))

    return make


def coloured(unseen: bool) -> "Maker":
    """The maker that replaces a colour, with which training never, or does, show the concept; the false colour is seen."""

    def make(view: View) -> Captions | None:
        slots = [slot for slot in view.singles if slot.colour and bool(unseen_colours([slot])) == unseen]
        if not slots:
            return None
        slot = view.rng.choice(slots)
        return Captions(mention(slot, slot.colour), mention(slot, other_colour(view, slot, seen=True)))

    return make


def change_size(view: View) -> Captions | None:
    """A small object becomes a large one, or a large one small."""
    short = min(view.config.width, view.config.height)
    for slot in view.singles:
        if slot.side < SMALL * short or slot.side > LARGE * short:
            words = ("small", "large") if slot.side < SMALL * short else ("large", "small")
            return Captions(*(mention(slot, word) for word in words))
    return None


Maker = Callable[[View], Captions | None]

REPLACE_ATT: Final = tinted(
    lambda view, slot: Captions(mention(slot, slot.colour), mention(slot, other_colour(view, slot)))
)
REPLACE_REL: Final = relational(lambda _, a, name, b: joined(mention(a), OPPOSITE[name], mention(b)))

SUGARCREPE: Final[dict[str, Maker]] = {
    "replace_obj": relational(lambda view, a, name, b: joined(mention(a), name, mention(absent_slot(view, b)))),
    "replace_att": REPLACE_ATT,
    "replace_rel": REPLACE_REL,
    "swap_obj": relational(lambda _, a, name, b: joined(mention(b), name, mention(a))),
    "swap_att": swap_att,
    "add_obj": add_obj,
    "add_att": tinted(lambda view, slot: Captions(mention(slot), mention(slot, other_colour(view, slot)))),
}
"""Maker of each file of SugarCrepe."""

COMBINATIONS: Final[dict[str, dict[str, Maker]]] = {
    kind: {"replace_obj": combined(kind == "unseen"), "replace_att": coloured(kind == "unseen")}
    for kind in ("unseen", "seen")
}
"""Makers of files in SugarCrepe's form about pairs of concepts, and of colour and concept, that training shows or does not."""

VL_CHECKLIST: Final[dict[str, Maker]] = {
    "Attribute/color": REPLACE_ATT,
    "Attribute/size": change_size,
    "Relation/spatial": REPLACE_REL,
}
"""Maker of each column of VL-CheckList that concerns attributes and relations."""


def object_columns(view: View) -> list[tuple[str, Captions]]:
    """The columns of VL-CheckList for one object, by its location and size, with an absent object as the false one.

    Location is the distance of the centre of the slot from that of the image, relative to half its diagonal: below 1/3
    center, below 2/3 mid, else margin. Size is the area of the slot relative to the image: above 1/6 large, above 1/20
    medium, else small.
    """
    if not view.singles:
        return []
    slot = view.rng.choice(view.singles)
    captions = Captions(mention(slot), mention(absent_slot(view, slot)))
    width, height = view.config.width, view.config.height
    distance = ((slot.cx - width / 2) ** 2 + (slot.cy - height / 2) ** 2) ** 0.5 / ((width**2 + height**2) ** 0.5 / 2)
    location = "center" if distance < 1 / 3 else "mid" if distance < 2 / 3 else "margin"
    share = slot.side**2 / (width * height)
    size = "large" if share > 1 / 6 else "medium" if share > 1 / 20 else "small"
    return [(f"Object/Location/{location}", captions), (f"Object/Size/{size}", captions)]
