"""Layouts of the wide world: 1 to 8 objects, scattered or arranged, with larger overlaps and more repetitions."""

import math
from dataclasses import dataclass
from random import Random

from demo.world.layout import Slot, shared_area
from demo.world.vocabulary import CONCEPTS, Concept
from demo.world.wide.looks import Look, draw_look

N_OBJECTS = ((1, 10), (2, 22), (3, 24), (4, 18), (5, 12), (6, 7), (7, 4), (8, 3))  # (number of objects, weight)
MIN_SIDE, MAX_SIDE = 0.11, 0.8  # of the canvas's side
CATEGORIES = sorted({concept.category for concept in CONCEPTS})


@dataclass(frozen=True, kw_only=True)
class Placed:
    """An object in its slot, with its look and the distortions of its drawing."""

    slot: Slot
    look: Look
    stretch: float = 1.0  # width divided by height, times that of the artwork
    outline: bool = False
    shadow: bool = False


def draw_things(rng: Random) -> list[tuple[Concept, Look]]:
    """Draw concepts and looks: all different, several of one concept, or several of one category."""
    n = rng.choices([n for n, _ in N_OBJECTS], [weight for _, weight in N_OBJECTS])[0]
    concepts = rng.sample(CONCEPTS, n)
    kind = rng.random()
    if n > 1 and kind < 0.2:
        category = rng.choice(CATEGORIES)
        members = [concept for concept in CONCEPTS if concept.category == category]
        k = rng.randint(2, min(n, 4, len(members)))
        concepts[:k] = rng.sample(members, k)
    looks = [draw_look(rng, concept.name) for concept in concepts]
    if n > 1 and 0.2 <= kind < 0.5 and concepts[0].is_countable:
        k = rng.randint(2, min(n, 5))
        concepts[:k] = [concepts[0]] * k
        if kind < 0.35:
            looks[:k] = [looks[0]] * k
    return (
        list(dict.fromkeys(zip(concepts, looks, strict=True)))
        if kind >= 0.5
        else list(zip(concepts, looks, strict=True))
    )


def draw_sides(rng: Random, n: int, side: int) -> list[float]:
    """Draw the longer sides of n drawings in pixels, log-uniform and smaller where there are many."""
    most = MAX_SIDE if n == 1 else min(MAX_SIDE, 1.3 / math.sqrt(n))
    if rng.random() < 0.25:
        common = MIN_SIDE * (most * 0.8 / MIN_SIDE) ** rng.random()
        return [side * common * rng.uniform(0.85, 1.15) for _ in range(n)]
    return [side * MIN_SIDE * (most / MIN_SIDE) ** rng.random() for _ in range(n)]


def draw_centres(rng: Random, n: int, side: int) -> list[tuple[float, float]] | None:
    """Draw the centres of n objects in a row, a column, a diagonal, a grid or a circle; None: scattered."""
    kind = rng.random()
    if n == 1 or kind < 0.55:
        return None
    steps = [(index + 0.5) / n for index in range(n)]
    across = rng.uniform(0.25, 0.75)
    if kind < 0.7:
        points = [(step, across) for step in steps]
    elif kind < 0.77:
        points = [(across, step) for step in steps]
    elif kind < 0.83:
        points = [(step, step) for step in steps] if rng.random() < 0.5 else [(step, 1 - step) for step in steps]
    elif kind < 0.93:
        columns = math.ceil(math.sqrt(n))
        rows = math.ceil(n / columns)
        points = [((index % columns + 0.5) / columns, (index // columns + 0.5) / rows) for index in range(n)]
    else:
        points = [(0.5 + 0.34 * math.cos(math.tau * s), 0.5 + 0.34 * math.sin(math.tau * s)) for s in steps]
    rng.shuffle(points)
    spread = 0.04
    return [(side * (x + rng.uniform(-spread, spread)), side * (y + rng.uniform(-spread, spread))) for x, y in points]


def draw_wide_layout(rng: Random, side: int) -> list[Placed]:
    """Draw the objects of one scene on a square canvas of `side` pixels. Objects that find no place are left out."""
    things = draw_things(rng)
    sides = draw_sides(rng, len(things), side)
    centres = draw_centres(rng, len(things), side)
    max_overlap = rng.choice((0.0, 0.1, 0.2, 0.35))
    decorated = rng.random() < 0.12, rng.random() < 0.15  # outlines and shadows, for all objects of a scene
    placed: list[Placed] = []
    for index, ((concept, look), longer) in enumerate(zip(things, sides, strict=True)):
        angle = rng.uniform(-35, 35) if rng.random() < 0.15 else rng.uniform(-10, 10) if rng.random() < 0.3 else 0.0
        flip, stretch = rng.random() < 0.5, rng.uniform(0.8, 1.25) if rng.random() < 0.25 else 1.0
        for attempt in range(40):
            if attempt % 8 == 7:
                longer = max(longer * 0.8, MIN_SIDE * side)
            free = side - longer - 2
            x, y = rng.uniform(1, 1 + free), rng.uniform(1, 1 + free)
            if centres:
                jitter = attempt * 0.004 * side
                cx, cy = (c + rng.uniform(-jitter, jitter) for c in centres[index])
                x, y = (min(max(c - longer / 2, 1), 1 + free) for c in (cx, cy))
            slot = Slot(concept=concept, colour=look.colour, x=x, y=y, side=longer, angle=angle, flip=flip)
            if all(shared_area(slot, other.slot) <= max_overlap for other in placed):
                outline, shadow = decorated
                placed.append(Placed(slot=slot, look=look, stretch=stretch, outline=outline, shadow=shadow))
                break
    return placed
