"""Where things stand, before anyone draws them: the same for every style, so that a caption is true in all of them.

Every object owns a square slot. Its drawing fits into the slot and, unless turned, spans it in one direction.
"""

from dataclasses import dataclass
from random import Random
from typing import Literal

from demo.world.vocabulary import COLOURS, CONCEPTS, Concept

N_OBJECTS = ((1, 12), (2, 28), (3, 30), (4, 20), (5, 10))  # (how many, weight)
# What two slots may share of the smaller one, so that of any two drawings in their middles at most 30 % of either is
# hidden. Worst case, a drawing thin as a line along its slot's middle: hidden over 0.15 / 0.5 of its side.
MAX_SLOT_OVERLAP = 0.15


Cast = list[tuple[Concept, str | None]]  # who appears, and in which tint


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """Canvas, and how often each thing happens. Sizes are pixels of a 224 px canvas and grow with its shorter side."""

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
            raise ValueError(f"canvas {self.width} x {self.height}: sides must lie in 64..1024")
        if not 8 <= self.min_side <= self.max_side <= 200:
            raise ValueError(f"need 8 <= min_side <= max_side <= 200, not {self.min_side} and {self.max_side}")

    @property
    def scale(self) -> float:
        return min(self.width, self.height) / 224


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The square an object may fill, in pixels; later slots are drawn over earlier ones."""

    concept: Concept
    colour: str | None
    x: float
    y: float
    side: float
    angle: float = 0.0
    flip: bool = False
    anchor: Literal["top", "middle", "bottom"] = "middle"  # which edge of the slot a flat drawing lies against
    stands: tuple[Literal["on", "in_front"], int] | None = None  # on or in front of the slot with this index

    @property
    def cx(self) -> float:
        return self.x + self.side / 2

    @property
    def cy(self) -> float:
        return self.y + self.side / 2


def shared_area(a: Slot, b: Slot) -> float:
    """Area that two slots share, as a share of the smaller one."""
    w = min(a.x + a.side, b.x + b.side) - max(a.x, b.x)
    h = min(a.y + a.side, b.y + b.side) - max(a.y, b.y)
    return max(w, 0.0) * max(h, 0.0) / min(a.side, b.side) ** 2


def draw_colour(rng: Random, concept: Concept) -> str:
    """Any colour word but the concept's own name: no "orange orange"."""
    return rng.choice([colour for colour in COLOURS if colour != concept.name])


def draw_pose(rng: Random) -> tuple[float, bool]:
    """A small turn in degrees, for some, and whether the drawing is mirrored."""
    return (rng.uniform(-14, 14) if rng.random() < 0.4 else 0.0), rng.random() < 0.5


def draw_cast(rng: Random, config: WorldConfig) -> Cast:
    """Who appears: distinct concepts, or one several times in one colour (to be counted) or many (to be told apart)."""
    n = rng.choices([n for n, _ in N_OBJECTS], [weight for _, weight in N_OBJECTS])[0]
    concepts = rng.sample(CONCEPTS, n)
    colours = [draw_colour(rng, concept) if rng.random() < config.tinted_share else None for concept in concepts]
    cast = list(zip(concepts, colours, strict=True))
    if n > 1 and rng.random() < config.repeated_share and concepts[0].countable:
        copies = rng.randint(2, min(n, 4))
        if rng.random() < 0.5:
            copies = min(copies, 3)
            choices = rng.sample([colour for colour in COLOURS if colour != concepts[0].name], copies)
            cast[:copies] = [(concepts[0], colour) for colour in choices]
        else:
            cast[:copies] = [cast[0]] * copies
    return cast


def place(rng: Random, config: WorldConfig, cast: Cast) -> list[Slot]:
    """Slots with log-uniform sides; who finds no room shrinks, and at last stays away."""
    slots: list[Slot] = []
    low, high = config.min_side * config.scale, config.max_side * config.scale
    room = min(config.width, config.height) - 4
    for concept, colour in cast:
        side = min(low * (high / low) ** rng.random(), room)
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


def place_pair(rng: Random, config: WorldConfig, cast: Cast, stands: Literal["on", "in_front"]) -> list[Slot]:
    """Like `place`, but the second stands on the first or in front of it; the others keep clear of both.

    On: the upper one's feet sink in by a twentieth, so that drawings with rounded tops still touch. In front: both
    stand on one line and the front one is 0.3 as tall, which hides at most 0.3 of the other, be it tall or wide.
    """
    low, short = config.min_side * config.scale, min(config.width, config.height)
    if stands == "on":
        back = rng.uniform(0.27, 0.48) * short
        front = max(back * rng.uniform(0.5, 0.95), low)
        room, rise = front, 0.95 * front
    else:
        back = rng.uniform(low / 0.3, max(0.65 * short, low / 0.3))
        front, room, rise = 0.3 * back, 0.0, 0.3 * back - back
    x, y = rng.uniform(1, config.width - back - 1), rng.uniform(room + 1, config.height - back - 1)
    front_x = x + (back - front) / 2 + rng.uniform(-0.06, 0.06) * back
    front_x = min(max(front_x, 1), config.width - front - 1)
    first = Slot(
        concept=cast[0][0], colour=cast[0][1], x=x, y=y, side=back, anchor="top" if stands == "on" else "bottom"
    )
    second = Slot(
        concept=cast[1][0], colour=cast[1][1], x=front_x, y=y - rise, side=front, anchor="bottom", stands=(stands, 0)
    )
    others = place(rng, config, cast[2:])
    return [first, second] + [s for s in others if shared_area(s, first) == shared_area(s, second) == 0]


def draw_layout(rng: Random, config: WorldConfig) -> list[Slot]:
    """The slots of one scene."""
    cast = draw_cast(rng, config)
    if len(cast) > 1 and cast[0][0] != cast[1][0]:
        draw = rng.random()
        if draw < 0.12:
            return place_pair(rng, config, cast, "on")
        if draw < 0.2 and config.min_side / 0.3 < 0.6 * 224:
            return place_pair(rng, config, cast, "in_front")
    return place(rng, config, cast)


def draw_grid(rng: Random, config: WorldConfig) -> list[Slot]:
    """The slots of a dense grid, 2 x 2 to 4 x 4 cells, nearly all filled; the curriculum's first lessons."""
    rows, columns = rng.randint(2, 4), rng.randint(2, 4)
    cell_w, cell_h = config.width / columns, config.height / rows
    slots = []
    for row in range(rows):
        for column in range(columns):
            if rng.random() < 0.04:
                continue
            concept = rng.choice(CONCEPTS)
            side = min(cell_w, cell_h) * rng.uniform(0.6, 0.98)
            x, y = column * cell_w + rng.uniform(0, cell_w - side), row * cell_h + rng.uniform(0, cell_h - side)
            colour = draw_colour(rng, concept) if rng.random() < config.tinted_share else None
            angle, flip = draw_pose(rng)
            slots.append(Slot(concept=concept, colour=colour, x=x, y=y, side=side, angle=angle, flip=flip))
    return slots
