"""Scenes: a picture with its objects, and a caption with its phrases, generated from one seed.

All randomness is derived from the seed. Layout and caption do not depend on the style, so one seed gives the same scene
in every style.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from demo.world.backgrounds import add_camera_effects, background
from demo.world.captions import Kind, Phrase, write_caption
from demo.world.layout import Slot, WorldConfig, draw_grid, draw_layout
from demo.world.sprites import VISIBLE_ALPHA, Style, draw_sprite
from demo.world.vocabulary import CONCEPT, CONCEPTS
from hypergrit_common.images import Image

# Disjoint by construction: training, evaluation and the demo share no scene.
TRAIN_SEEDS = range(1_000_000_000)
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


def make_grid(seed: int, style: Style, config: WorldConfig = DEFAULT) -> Scene:
    """Generate a dense grid of 2 x 2 to 4 x 4 objects whose caption is a list prompt."""
    slots = draw_grid(Random(f"grid {seed}"), config)
    image, objects = render(slots, Random(f"picture {seed}"), style, config)
    return list_prompt(Scene(seed=seed, style=style, image=image, objects=objects, caption="", phrases=()))


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


def list_prompt(scene: Scene, max_names: int = 16) -> Scene:
    """Replace the caption by a detection prompt, "owl. blue bell.", of present objects and 1 to 5 absent concepts."""
    rng = Random(f"prompt {scene.seed}")
    colours: dict[str, set[str | None]] = {}
    for obj in scene.objects:
        colours.setdefault(obj.concept, set()).add(obj.colour)
    present: dict[tuple[str, str | None], list[int]] = {}
    for index, obj in enumerate(scene.objects):
        # If one bell is tinted and another is not, both are named "bell": the untinted one may have the same colour.
        colour = None if None in colours[obj.concept] else obj.colour
        present.setdefault((obj.concept, colour), []).append(index)
    n_absent = rng.randint(1, 5)
    absent = [(concept.name, None) for concept in rng.sample(CONCEPTS, len(CONCEPTS)) if concept.name not in colours]
    names = rng.sample(list(present), min(len(present), max_names - n_absent)) + absent[:n_absent]
    rng.shuffle(names)
    caption, phrases = "", []
    for concept, colour in names:
        members = tuple(present.get((concept, colour), ()))
        kind: Kind = "absent" if not members else "contrast" if len(colours[concept]) > 1 and colour else "object"
        adjective, noun = f"{colour} " if colour else "", CONCEPT[concept].noun
        start = len(caption)
        caption += f"{adjective}{noun}. "
        end = start + len(adjective) + len(noun)
        noun_start = start + len(adjective)
        phrases.append(Phrase(start=start, end=end, noun_start=noun_start, noun_end=end, kind=kind, objects=members))
    return replace(scene, caption=caption.rstrip(), phrases=tuple(phrases))


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """Schedule of the training scenes.

    The share of dense grids changes linearly from `dense_first` to `dense_last` over `n_scenes` scenes. Of the other
    scenes, a share of `list_prompt_share` has a list prompt instead of a caption.
    """

    dense_first: float = 0.95
    dense_last: float = 0.25
    n_scenes: int = 80_000
    list_prompt_share: float = 0.25

    def dense_share(self, index: int) -> float:
        """Return the share of dense grids at the scene with this index."""
        return self.dense_first + (self.dense_last - self.dense_first) * min(index / self.n_scenes, 1.0)


def scene_stream(
    seed_start: int,
    styles: tuple[Style, ...],
    *,
    step: int = 1,
    curriculum: Curriculum | None = None,
    config: WorldConfig = DEFAULT,
) -> Iterator[Scene]:
    """Yield the scenes of `seed_start`, `seed_start + step`, ... indefinitely.

    Worker r of n adds r to the first seed and uses n as the step. Without a curriculum, all scenes have captions.
    """
    seed = seed_start
    while True:
        rng = Random(f"stream {seed}")
        style = rng.choice(styles)
        kind = rng.random()
        dense_share = curriculum.dense_share(seed - seed_start) if curriculum else 0.0
        if kind < dense_share:
            yield make_grid(seed, style, config)
        else:
            scene = make_scene(seed, style, config)
            yield list_prompt(scene) if curriculum and rng.random() < curriculum.list_prompt_share else scene
        seed += step


def corpus(n: int, seed_start: int = 0) -> Iterator[str]:
    """Yield `n` captions without rendering the pictures, as text to train a tokenizer on."""
    return (compose(seed)[1] for seed in range(seed_start, seed_start + n))
