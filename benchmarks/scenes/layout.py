"""Layouts of the independent scenes: objects on shelves, around a large one, or as far apart as chance allows."""

import math
from dataclasses import dataclass
from random import Random
from typing import Literal

from benchmarks.scenes.pictures import BLACK_AND_WHITE, TINTS, Size
from demo.world.vocabulary import CONCEPTS

Look = str | None
CANVASES: tuple[Size, ...] = ((320, 240), (400, 300), (256, 256), (480, 320), (300, 360))


@dataclass(frozen=True, kw_only=True)
class Item:
    """An object: its concept, look, centre and longer side in pixels."""

    concept: str
    look: Look
    x: float
    y: float
    side: float


def draw_things(rng: Random) -> list[tuple[str, Look]]:
    """Draw 1 to 6 concepts with looks; 30 % of the scenes repeat one concept, in one look or in two."""
    n = rng.choice((1, 2, 2, 3, 3, 3, 4, 4, 5, 6))
    names = [concept.name for concept in rng.sample(CONCEPTS, n)]
    looks = [draw_look(rng) for _ in names]
    first = next(concept for concept in CONCEPTS if concept.name == names[0])
    if n > 1 and first.is_countable and rng.random() < 0.3:
        copies = rng.randint(2, min(n, 4))
        names[:copies] = [names[0]] * copies
        looks[:copies] = [looks[0]] * copies
        if rng.random() < 0.4:
            two = rng.sample([*TINTS, BLACK_AND_WHITE], 2)
            looks[:copies] = [two[index % 2] for index in range(copies)]
    return list(zip(names, looks, strict=True))


def draw_look(rng: Random) -> Look:
    kind = rng.random()
    return None if kind < 0.6 else BLACK_AND_WHITE if kind < 0.72 else rng.choice(list(TINTS))


def draw_items(rng: Random, size: Size) -> list[Item]:
    """Draw the objects of one scene; at most a quarter of a square is hidden by another."""
    things = draw_things(rng)
    plan: Literal["shelf", "centre", "apart"] = rng.choice(("shelf", "centre", "apart", "apart"))
    items: list[Item] = []
    width, height = size
    for index, (concept, look) in enumerate(things):
        for _ in range(30):
            side = height * rng.uniform(0.16, 0.5 if len(things) < 4 else 0.36)
            x, y = rng.uniform(side / 2, width - side / 2), rng.uniform(side / 2, height - side / 2)
            if plan == "shelf":
                shelf = rng.choice((0.48, 0.95)) if len(things) > 3 else 0.8
                x, y = width * (index + 0.5) / len(things), height * shelf - side / 2
                side = min(side, 1.1 * width / len(things))
            elif plan == "centre" and index == 0:
                side = height * rng.uniform(0.4, 0.55)
                x, y = width / 2, height / 2
            item = Item(concept=concept, look=look, x=x, y=max(y, side / 2), side=side)
            if all(hidden(item, other) < 0.25 for other in items):
                items.append(item)
                break
    return items


def hidden(a: Item, b: Item) -> float:
    """Return the overlap of two squares as a share of the smaller one."""
    w = (a.side + b.side) / 2 - abs(a.x - b.x)
    h = (a.side + b.side) / 2 - abs(a.y - b.y)
    return max(min(w, a.side, b.side), 0.0) * max(min(h, a.side, b.side), 0.0) / min(a.side, b.side) ** 2


def side_of(a: Item, b: Item) -> str:
    """Return where `a` is, seen from `b`: left, right, above, below or beside."""
    dx, dy = a.x - b.x, a.y - b.y
    if max(abs(dx), abs(dy)) < 0.6 * max(a.side, b.side):
        return "beside"
    angle = math.degrees(math.atan2(-dy, dx))
    for name, middle in (("right", 0), ("above", 90), ("left", 180), ("left", -180), ("below", -90)):
        if abs(angle - middle) < 35:
            return name
    return "beside"
