"""Scenes: a picture with its objects, and a caption with its phrases, generated from one seed.

All randomness is derived from the seed. Layout and caption do not depend on the style, so one seed gives the same scene
in every style.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

import numpy as np
from numpy.typing import NDArray

from demo.world.backgrounds import add_camera_effects, background
from demo.world.captions import Phrase, write_caption
from demo.world.layout import Slot, WorldConfig, draw_layout
from demo.world.sprites import VISIBLE_ALPHA, Style, draw_sprite
from hypergrit_common.images import Image

# Disjoint by construction: training, evaluation and the demo share no scene. The miniature GLIP and CLIP were trained on
# smaller seeds.
TEST_SEEDS = range(1_000_000_000, 1_100_000_000)
DEMO_SEEDS = range(1_100_000_000, 1_200_000_000)
SHARD_SEEDS = range(1_200_000_000, 1_300_000_000)  # training rows of demo.train_demo
HELD_OUT_SEEDS = range(1_300_000_000, 1_400_000_000)  # evaluation rows of demo.train_demo

DEFAULT = WorldConfig()


@dataclass(frozen=True, kw_only=True)
class Object:
    """An object of a scene. `box` is (x_min, y_min, x_max, y_max) in pixels, around the visible part."""

    concept: str
    colour: str | None
    box: tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """An RGB picture [height width 3] with its objects, and a caption with its phrases."""

    seed: int
    style: Style
    image: Image
    objects: tuple[Object, ...]
    caption: str
    phrases: tuple[Phrase, ...]


def make_scene(seed: int, style: Style, config: WorldConfig = DEFAULT) -> Scene:
    """Generate the scene of a seed in one style, with 1 to 5 objects."""
    slots, caption, phrases = compose(seed, config)
    image, objects = render(slots, Random(f"picture {seed}"), style, config)
    return Scene(seed=seed, style=style, image=image, objects=objects, caption=caption, phrases=phrases)


def compose(seed: int, config: WorldConfig = DEFAULT) -> tuple[list[Slot], str, tuple[Phrase, ...]]:
    """Return layout, caption and phrases of a seed without rendering the picture."""
    slots = draw_layout(Random(f"layout {seed}"), config)
    caption, phrases = write_caption(slots, Random(f"caption {seed}"), config)
    return slots, caption, tuple(phrases)


def render(slots: list[Slot], rng: Random, style: Style, config: WorldConfig) -> tuple[Image, tuple[Object, ...]]:
    """Render the slots. Each object's box encloses the pixels where it is topmost and at least half opaque."""
    image = background(rng, config.width, config.height)
    topmost = np.full(image.shape[:2], 255, np.uint8)  # index of the visible object at each pixel
    windows = []
    for index, slot in enumerate(slots):
        rgb, alpha = draw_sprite(style, slot.concept.name, slot.colour, slot.side, slot.angle, slot.flip)
        h, w = alpha.shape
        share_above = {"top": 0.0, "middle": 0.5, "bottom": 1.0}[slot.anchor]
        x = min(max(round(slot.x + (slot.side - w) / 2), 0), config.width - w)
        y = min(max(round(slot.y + (slot.side - h) * share_above), 0), config.height - h)
        window = (slice(y, y + h), slice(x, x + w))
        windows.append(window)
        background_rgb = image[window].astype(np.uint16)
        opacity = alpha[..., None].astype(np.uint16)
        image[window] = (rgb * opacity + background_rgb * (255 - opacity) + 127) // 255
        topmost[window][alpha >= VISIBLE_ALPHA] = index
    boxes = [visible_box(topmost[w] == index, w[1].start, w[0].start) for index, w in enumerate(windows)]
    objects = (Object(concept=s.concept.name, colour=s.colour, box=box) for s, box in zip(slots, boxes, strict=True))
    return add_camera_effects(image, rng), tuple(objects)


def visible_box(visible: NDArray[np.bool_], left: int, top: int) -> tuple[float, float, float, float]:
    """Return the bounding box of the true pixels of a mask [h w] whose corner is at (left, top) of the picture."""
    columns, rows = np.flatnonzero(visible.any(axis=0)), np.flatnonzero(visible.any(axis=1))
    return float(left + columns[0]), float(top + rows[0]), float(left + columns[-1] + 1), float(top + rows[-1] + 1)


def scene_stream(seed_start: int, styles: tuple[Style, ...]) -> Iterator[Scene]:
    """Yield the scenes of the seeds from `seed_start` on, indefinitely, each in a style drawn from its seed."""
    for seed in count(seed_start):
        yield make_scene(seed, Random(f"stream {seed}").choice(styles))


def corpus(n: int, seed_start: int = 0) -> Iterator[str]:
    """Yield `n` captions without rendering the pictures, as text to train a tokenizer on."""
    return (compose(seed)[1] for seed in range(seed_start, seed_start + n))
