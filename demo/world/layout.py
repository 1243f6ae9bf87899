"""Where things stand, before anyone draws them: the same for every style of artwork, so that a caption is true in all of them.

Every object owns a square slot. Its drawing fits into the slot and touches two opposite sides of it, whatever its aspect ratio.
"""

from dataclasses import dataclass
from random import Random
from typing import Literal

from demo.world.vocabulary import COLOURS, CONCEPTS, Concept

N_OBJECTS = ((1, 12), (2, 28), (3, 30), (4, 20), (5, 10))  # (how many, weight)
# Two squares that share at most this share of the smaller one: then of any two drawings in their middles at most 30 % of either is covered.
# Worst case, a drawing thin as a line along the middle of its slot: hidden over a width of 0.15 / 0.5 = 0.3 of the side.
MAX_SLOT_OVERLAP = 0.15


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """Canvas, and how often each thing happens. Sizes are pixels of a 224 px canvas and grow with the canvas's shorter side."""

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
            raise ValueError(f"min_side {self.min_side}, max_side {self.max_side}: need 8 <= min_side <= max_side <= 200")

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
    rests_on: int | None = None  # index of the slot it stands on

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


def cast(rng: Random, config: WorldConfig) -> list[tuple[Concept, str | None]]:
    """Who appears: distinct concepts, or one of them several times in one colour (to be counted) or in different colours (to be told apart)."""
    n = rng.choices([n for n, _ in N_OBJECTS], [weight for _, weight in N_OBJECTS])[0]
    concepts = rng.sample(CONCEPTS, n)
    colours = [draw_colour(rng, concept) if rng.random() < config.tinted_share else None for concept in concepts]
    people = list(zip(concepts, colours, strict=True))
    if n > 1 and rng.random() < config.repeated_share and concepts[0].countable:
        copies = rng.randint(2, min(n, 4))
        if rng.random() < 0.5:
            copies = min(copies, 3)
            choices = rng.sample([colour for colour in COLOURS if colour != concepts[0].name], copies)
            people[:copies] = [(concepts[0], colour) for colour in choices]
        else:
            people[:copies] = [people[0]] * copies
    return people


def place(rng: Random, config: WorldConfig, people: list[tuple[Concept, str | None]]) -> list[Slot]:
    """Slots with log-uniform sides; who finds no room shrinks, and at last stays away."""
    slots: list[Slot] = []
    low, high = config.min_side * config.scale, config.max_side * config.scale
    room = min(config.width, config.height) - 4
    for concept, colour in people:
        side = min(low * (high / low) ** rng.random(), room)
        angle = rng.uniform(-14, 14) if rng.random() < 0.4 else 0.0
        flip = rng.random() < 0.5
        for attempt in range(60):
            if attempt % 10 == 9:
                side = max(side * 0.8, low)
            x, y = rng.uniform(1, config.width - side - 1), rng.uniform(1, config.height - side - 1)
            slot = Slot(concept=concept, colour=colour, x=x, y=y, side=side, angle=angle, flip=flip)
            if all(shared_area(slot, other) <= MAX_SLOT_OVERLAP for other in slots):
                slots.append(slot)
                break
    return slots


def place_resting(rng: Random, config: WorldConfig, people: list[tuple[Concept, str | None]]) -> list[Slot]:
    """Like `place`, but the second stands on the first, their outlines touching; the others keep clear of both."""
    low, short = config.min_side * config.scale, min(config.width, config.height)
    below = rng.uniform(0.27, 0.48) * short
    above = max(below * rng.uniform(0.5, 0.95), low)
    # The upper one's feet sink in by a twentieth, so that drawings with rounded tops still touch.
    y = rng.uniform(above + 1, config.height - below - 1)
    x = rng.uniform(1, config.width - below - 1)
    base = Slot(concept=people[0][0], colour=people[0][1], x=x, y=y, side=below, flip=rng.random() < 0.5, anchor="top")
    top_x = min(max(x + (below - above) / 2 + rng.uniform(-0.06, 0.06) * below, 1), config.width - above - 1)
    top = Slot(
        concept=people[1][0], colour=people[1][1], x=top_x, y=y - above + 0.05 * above, side=above, flip=rng.random() < 0.5, anchor="bottom", rests_on=0
    )
    others = [slot for slot in place(rng, config, people[2:]) if shared_area(slot, base) == 0 and shared_area(slot, top) == 0]
    return [base, top, *others]


def draw_layout(rng: Random, config: WorldConfig) -> list[Slot]:
    """The slots of one scene."""
    people = cast(rng, config)
    if len(people) > 1 and people[0][0] != people[1][0] and rng.random() < 0.15:
        return place_resting(rng, config, people)
    return place(rng, config, people)


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
            angle = rng.uniform(-14, 14) if rng.random() < 0.3 else 0.0
            slots.append(Slot(concept=concept, colour=colour, x=x, y=y, side=side, angle=angle, flip=rng.random() < 0.5))
    return slots
