"""One independent scene from one seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from benchmarks.scenes.captions import write
from benchmarks.scenes.layout import CANVASES, Item, draw_items
from benchmarks.scenes.pictures import BACKGROUNDS, Size, cut_out, photograph
from demo.world.scenes import Object, Scene
from demo.world.sprites import Style


@dataclass(frozen=True, kw_only=True)
class Case:
    """A scene with the tags of each of its phrases."""

    scene: Scene
    tags: tuple[frozenset[str], ...]


def independent_scene(seed: int, style: Style) -> Case:
    """Generate the scene of a seed; layout and caption are the same in every style."""
    rng = Random(f"independent {seed}")
    size = rng.choice(CANVASES)
    place = rng.choice(list(BACKGROUNDS))
    items = draw_items(rng, size)
    writer = write(items, place, rng)
    pixels, objects = paint(items, size, place, style, rng)
    scene = Scene(
        seed=seed, style=style, image=pixels, objects=objects, caption=writer.text, phrases=tuple(writer.phrases)
    )
    return Case(scene=scene, tags=tuple(writer.tags))


def paint(
    items: Sequence[Item], size: Size, place: str, style: Style, rng: Random
) -> tuple[np.ndarray, tuple[Object, ...]]:
    """Return the picture [height width 3] in RGB, and the objects with boxes around their visible pixels."""
    image = BACKGROUNDS[place](rng, size)
    owner = np.full((size[1], size[0]), -1, np.int16)
    for index, item in enumerate(items):
        drawing = cut_out(style, item.concept, item.look, round(item.side), rng.random() < 0.5)
        left, top = round(item.x - drawing.width / 2), round(item.y - drawing.height / 2)
        left, top = min(max(left, 0), size[0] - drawing.width), min(max(top, 0), size[1] - drawing.height)
        image.paste(drawing, (left, top), drawing)
        mask = np.asarray(drawing.getchannel("A")) >= 128
        owner[top : top + drawing.height, left : left + drawing.width][mask] = index
    objects = []
    for index, item in enumerate(items):
        rows, columns = np.nonzero(owner == index)
        box = (float(columns.min()), float(rows.min()), float(columns.max() + 1), float(rows.max() + 1))
        objects.append(Object(concept=item.concept, colour=item.look, box=box))
    return np.asarray(photograph(image, rng)), tuple(objects)
