"""Layouts: the objects of a scene and their slots, independent of the drawing style.

Each object has a square slot. Its drawing fits into the slot and, unless rotated, spans it along one axis. Captions are
derived from the layout, so they are true in every style.
"""

import math
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

from demo.world.vocabulary import COLOURS, CONCEPTS, Concept

N_OBJECTS = ((1, 12), (2, 28), (3, 30), (4, 20), (5, 10))  # (number of objects, weight)
# Largest overlap of two slots, as a share of the smaller one. It ensures that at most 30 % of a drawing centred in its
# slot is hidden. Worst case: a thin line along the middle of the slot, of whose length 0.15 / 0.5 is hidden.
MAX_SLOT_OVERLAP = 0.15


class ObjectSpec(NamedTuple):
    """An object to place: its concept and its tint (None: untinted)."""

    concept: Concept
    colour: str | None


class Contact(NamedTuple):
    """The relation of a slot to an earlier slot that it was placed on or in front of."""

    relation: Literal["on", "in_front"]
    slot: int  # index of the earlier slot


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """Canvas size, object sizes and frequencies. Object sizes apply to a 224 px canvas and scale with its shorter side."""

    width: int = 224
    height: int = 224
    min_side: float = 30.0
    max_side: float = 140.0
    tinted_share: float = 0.35
    repeated_share: float = 0.25
    category_share: float = 0.12
    absent_share: float = 0.15
    abstract_share: float = 0.18

    def __post_init__(self) -> None:
        if min(self.width, self.height) < 64 or max(self.width, self.height) > 1024:
            raise ValueError(f"canvas {self.width} x {self.height}: both sides must lie in 64..1024")
        if not 8 <= self.min_side <= self.max_side <= 200:
            raise ValueError(
                f"min_side {self.min_side}, max_side {self.max_side}: must satisfy 8 <= min_side <= max_side <= 200"
            )

    @property
    def scale(self) -> float:
        return min(self.width, self.height) / 224


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The square that an object may fill, in pixels. Later slots are drawn over earlier ones."""

    concept: Concept
    colour: str | None
    x: float
    y: float
    side: float
    angle: float = 0.0  # degrees
    flip: bool = False
    anchor: Literal["top", "middle", "bottom"] = "middle"  # vertical alignment of a drawing less tall than the slot
    contact: Contact | None = None

    @property
    def cx(self) -> float:
        return self.x + self.side / 2

    @property
    def cy(self) -> float:
        return self.y + self.side / 2


def shared_area(a: Slot, b: Slot) -> float:
    """Return the overlap of two slots as a share of the smaller one."""
    w = min(a.x + a.side, b.x + b.side) - max(a.x, b.x)
    h = min(a.y + a.side, b.y + b.side) - max(a.y, b.y)
    return max(w, 0.0) * max(h, 0.0) / min(a.side, b.side) ** 2


def draw_colour(rng: Random, concept: Concept) -> str:
    """Draw a colour word other than the concept's own name: no "orange orange"."""
    return rng.choice([colour for colour in COLOURS if colour != concept.name])


def draw_pose(rng: Random) -> tuple[float, bool]:
    """Draw a rotation in degrees (0 for 60 % of the objects) and a horizontal flip."""
    return (rng.uniform(-14, 14) if rng.random() < 0.4 else 0.0), rng.random() < 0.5


def draw_objects(rng: Random, config: WorldConfig) -> list[ObjectSpec]:
    """Draw the objects of a scene.

    Concepts are distinct, except that one may be repeated: in one colour (a caption counts it) or in several colours (a
    caption distinguishes them).
    """
    n = rng.choices([n for n, _ in N_OBJECTS], [weight for _, weight in N_OBJECTS])[0]
    concepts = rng.sample(CONCEPTS, n)
    colours = [draw_colour(rng, concept) if rng.random() < config.tinted_share else None for concept in concepts]
    objects = [ObjectSpec(concept, colour) for concept, colour in zip(concepts, colours, strict=True)]
    if n > 1 and rng.random() < config.repeated_share and concepts[0].is_countable:
        copies = rng.randint(2, min(n, 4))
        if rng.random() < 0.5:
            copies = min(copies, 3)
            choices = rng.sample([colour for colour in COLOURS if colour != concepts[0].name], copies)
            objects[:copies] = [ObjectSpec(concepts[0], colour) for colour in choices]
        else:
            objects[:copies] = [objects[0]] * copies
    return objects


def draw_slots(rng: Random, config: WorldConfig, objects: list[ObjectSpec]) -> list[Slot]:
    """Draw slots with log-uniform sides. An object that does not fit is shrunk, and skipped after 60 attempts."""
    slots: list[Slot] = []
    low, high = config.min_side * config.scale, config.max_side * config.scale
    available = min(config.width, config.height) - 4
    for concept, colour in objects:
        side = min(low * (high / low) ** rng.random(), available)
        angle, flip = draw_pose(rng)
        for attempt in range(60):
            if attempt % 10 == 9:
                side = max(side * 0.8, low)
            x, y = rng.uniform(1, config.width - side - 1), rng.uniform(1, config.height - side - 1)
            slot = Slot(concept=concept, colour=colour, x=x, y=y, side=side, angle=angle, flip=flip)
            if all(shared_area(slot, other) <= MAX_SLOT_OVERLAP for other in slots):
                slots.append(slot)
                break
    return slots


def draw_contact_slots(
    rng: Random, config: WorldConfig, objects: list[ObjectSpec], relation: Literal["on", "in_front"]
) -> list[Slot]:
    """Draw slots in which the second object is on, or in front of, the first; the others overlap neither.

    On: the upper slot overlaps the lower one by a twentieth, so that drawings with rounded tops still touch. In front:
    both slots share the bottom edge and the front one has 0.3 of the side, which hides at most 0.3 of the other
    drawing.
    """
    low, short = config.min_side * config.scale, min(config.width, config.height)
    if relation == "on":
        back = rng.uniform(0.27, 0.48) * short
        front = max(back * rng.uniform(0.5, 0.95), low)
        headroom, rise = front, 0.95 * front
    else:
        back = rng.uniform(low / 0.3, max(0.65 * short, low / 0.3))
        front, headroom, rise = 0.3 * back, 0.0, 0.3 * back - back
    x, y = rng.uniform(1, config.width - back - 1), rng.uniform(headroom + 1, config.height - back - 1)
    front_x = x + (back - front) / 2 + rng.uniform(-0.06, 0.06) * back
    front_x = min(max(front_x, 1), config.width - front - 1)
    first = Slot(
        concept=objects[0].concept,
        colour=objects[0].colour,
        x=x,
        y=y,
        side=back,
        anchor="top" if relation == "on" else "bottom",
    )
    second = Slot(
        concept=objects[1].concept,
        colour=objects[1].colour,
        x=front_x,
        y=y - rise,
        side=front,
        anchor="bottom",
        contact=Contact(relation, 0),
    )
    others = draw_slots(rng, config, objects[2:])
    return [first, second] + [s for s in others if shared_area(s, first) == shared_area(s, second) == 0]


def draw_layout(rng: Random, config: WorldConfig) -> list[Slot]:
    """Draw the slots of one scene."""
    objects = draw_objects(rng, config)
    if len(objects) > 1 and objects[0].concept != objects[1].concept:
        draw = rng.random()
        if draw < 0.12:
            return draw_contact_slots(rng, config, objects, "on")
        if draw < 0.2 and config.min_side / 0.3 < 0.6 * 224:
            return draw_contact_slots(rng, config, objects, "in_front")
    return draw_slots(rng, config, objects)


def centre(slots: list[Slot]) -> tuple[float, float]:
    """Return the mean of the slots' centres in pixels, as (x, y)."""
    return sum(slot.cx for slot in slots) / len(slots), sum(slot.cy for slot in slots) / len(slots)


def gap(a: Slot, b: Slot) -> float:
    """Return the distance between two slots in pixels; 0 if they touch or overlap."""
    dx = max(a.x, b.x) - min(a.x + a.side, b.x + b.side)
    dy = max(a.y, b.y) - min(a.y + a.side, b.y + b.side)
    return math.hypot(max(dx, 0.0), max(dy, 0.0))


def relations(first: list[Slot], second: list[Slot], scene: list[Slot], config: WorldConfig) -> list[str]:
    """Return the relations from `first` to `second` that hold for all pairs of slots, as keys of `grammar.RELATIONS`.

    Left, right, above and below need a larger difference along their own axis than along the other one, and no slot
    may extend past the centre of a slot of the other group.
    """
    if len(first) == len(second) == 1:
        a, b = first[0], second[0]
        if a.contact and scene[a.contact.slot] is b:
            return ["on", "above"] if a.contact.relation == "on" else ["in_front"]
        if b.contact and scene[b.contact.slot] is a:
            return ["below"] if b.contact.relation == "on" else ["behind"]
    (ax, ay), (bx, by) = centre(first), centre(second)
    found = []
    if abs(ax - bx) > abs(ay - by):
        if all(a.x + a.side < b.cx and a.cx < b.x for a in first for b in second):
            found.append("left")
        elif all(b.x + b.side < a.cx and b.cx < a.x for a in first for b in second):
            found.append("right")
    elif all(a.y + a.side < b.cy and a.cy < b.y for a in first for b in second):
        found.append("above")
    elif all(b.y + b.side < a.cy and b.cy < a.y for a in first for b in second):
        found.append("below")
    if len(first) == len(second) == 1:
        short = min(config.width, config.height)
        if gap(a, b) < 0.08 * short and math.dist((ax, ay), (bx, by)) < 0.5 * short:
            found.append("near")
        elif gap(a, b) > 0.5 * short:
            found.append("far")
    return found


def position_of(slot: Slot, config: WorldConfig) -> str:
    """Return the cell of a 3 x 3 grid over the picture that contains the slot's centre; a key of `grammar.POSITIONS`."""
    column = ("left", "", "right")[min(int(3 * slot.cx / config.width), 2)]
    row = ("top", "", "bottom")[min(int(3 * slot.cy / config.height), 2)]
    return f"{row} {column}".strip() or "middle"
