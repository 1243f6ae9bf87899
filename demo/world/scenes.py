"""Scenes: a picture, a caption, and the truth about both, all from one seed.

Everything random comes from the seed, and neither layout nor caption asks for the style: one seed gives the same scene
by every artist.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from common.images import Image
from demo.world.backgrounds import background, finish
from demo.world.captions import Kind, Phrase, tell
from demo.world.layout import Slot, WorldConfig, draw_grid, draw_layout
from demo.world.sprites import VISIBLE_ALPHA, Style, draw_sprite
from demo.world.vocabulary import CONCEPT, CONCEPTS

# Disjoint by construction: no model sees a scene that it is tested on, and none of either is served by the demo.
TRAIN_SEEDS = range(1_000_000_000)
TEST_SEEDS = range(1_000_000_000, 1_100_000_000)
DEMO_SEEDS = range(1_100_000_000, 1_200_000_000)
SHARD_SEEDS = range(1_200_000_000, 1_300_000_000)  # rows of the trainer's demo
HELD_OUT_SEEDS = range(1_300_000_000, 1_400_000_000)  # what it is measured on

DEFAULT = WorldConfig()


@dataclass(frozen=True, kw_only=True)
class Object:
    """One drawing in a scene. `box` is x_min, y_min, x_max, y_max in pixels, around what is visible of it."""

    concept: str
    colour: str | None
    box: tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A picture [height width 3] in RGB, what is in it, and a caption with its phrases."""

    seed: int
    style: Style
    image: Image
    objects: tuple[Object, ...]
    caption: str
    phrases: tuple[Phrase, ...]


def make_scene(seed: int, style: Style, config: WorldConfig = DEFAULT) -> Scene:
    """The scene of a seed in one style: 1 to 5 objects and a caption about them."""
    slots, caption, phrases = compose(seed, config)
    image, objects = render(slots, Random(f"picture {seed}"), style, config)
    return Scene(seed=seed, style=style, image=image, objects=objects, caption=caption, phrases=phrases)


def compose(seed: int, config: WorldConfig = DEFAULT) -> tuple[list[Slot], str, tuple[Phrase, ...]]:
    """Layout, caption and phrases of a seed, without drawing anything."""
    slots = draw_layout(Random(f"layout {seed}"), config)
    caption, phrases = tell(slots, Random(f"caption {seed}"), config)
    return slots, caption, tuple(phrases)


def make_grid(seed: int, style: Style, config: WorldConfig = DEFAULT) -> Scene:
    """A dense grid of 2 x 2 to 4 x 4 objects, its caption a list of their names."""
    slots = draw_grid(Random(f"grid {seed}"), config)
    image, objects = render(slots, Random(f"picture {seed}"), style, config)
    return list_prompt(Scene(seed=seed, style=style, image=image, objects=objects, caption="", phrases=()))


def render(slots: list[Slot], rng: Random, style: Style, config: WorldConfig) -> tuple[Image, tuple[Object, ...]]:
    """The picture, and each object's box around the pixels where it is the topmost and at least half opaque."""
    image = background(rng, config.width, config.height)
    topmost = np.full(image.shape[:2], 255, np.uint8)  # index of the object seen at each pixel
    windows = []
    for index, slot in enumerate(slots):
        rgb, alpha = draw_sprite(style, slot.concept.name, slot.colour, slot.side, slot.angle, slot.flip)
        h, w = alpha.shape
        slack = {"top": 0.0, "middle": 0.5, "bottom": 1.0}[slot.anchor]
        x = min(max(round(slot.x + (slot.side - w) / 2), 0), config.width - w)
        y = min(max(round(slot.y + (slot.side - h) * slack), 0), config.height - h)
        window = (slice(y, y + h), slice(x, x + w))
        windows.append(window)
        under = image[window].astype(np.uint16)
        cover = alpha[..., None].astype(np.uint16)
        image[window] = (rgb * cover + under * (255 - cover) + 127) // 255
        topmost[window][alpha >= VISIBLE_ALPHA] = index
    boxes = [visible_box(topmost[w] == index, w[1].start, w[0].start) for index, w in enumerate(windows)]
    objects = (Object(concept=s.concept.name, colour=s.colour, box=box) for s, box in zip(slots, boxes, strict=True))
    return finish(image, rng), tuple(objects)


def visible_box(seen: NDArray[np.bool_], left: int, top: int) -> tuple[float, float, float, float]:
    """Extent of the true pixels of a window [h w] that begins at (left, top)."""
    columns, rows = np.flatnonzero(seen.any(axis=0)), np.flatnonzero(seen.any(axis=1))
    return float(left + columns[0]), float(top + rows[0]), float(left + columns[-1] + 1), float(top + rows[-1] + 1)


def list_prompt(scene: Scene, max_names: int = 16) -> Scene:
    """The same picture with a detection prompt, "owl. blue bell.": what is there, and 1 to 5 names of what is not."""
    rng = Random(f"prompt {scene.seed}")
    colours: dict[str, set[str | None]] = {}
    for thing in scene.objects:
        colours.setdefault(thing.concept, set()).add(thing.colour)
    wanted: dict[tuple[str, str | None], list[int]] = {}
    for index, thing in enumerate(scene.objects):
        # One bell tinted, one plain: only "bell" is certain to be true of both.
        colour = None if None in colours[thing.concept] else thing.colour
        wanted.setdefault((thing.concept, colour), []).append(index)
    n_absent = rng.randint(1, 5)
    absent = [(concept.name, None) for concept in rng.sample(CONCEPTS, len(CONCEPTS)) if concept.name not in colours]
    names = rng.sample(list(wanted), min(len(wanted), max_names - n_absent)) + absent[:n_absent]
    rng.shuffle(names)
    caption, phrases = "", []
    for concept, colour in names:
        members = tuple(wanted.get((concept, colour), ()))
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
    """The share of dense grids falls from `dense_first` to `dense_last` over `over` scenes.

    Of the other scenes, a share of `listed` has a list prompt in place of its caption.
    """

    dense_first: float = 0.95
    dense_last: float = 0.25
    over: int = 80_000
    listed: float = 0.25

    def dense(self, index: int) -> float:
        return self.dense_first + (self.dense_last - self.dense_first) * min(index / self.over, 1.0)


def scene_stream(
    seed_start: int,
    styles: tuple[Style, ...],
    *,
    step: int = 1,
    curriculum: Curriculum | None = None,
    config: WorldConfig = DEFAULT,
) -> Iterator[Scene]:
    """Scenes of `seed_start`, `seed_start + step`, ... without end; worker r of n starts r later and steps by n.

    Without a curriculum all are real scenes with captions.
    """
    seed = seed_start
    while True:
        rng = Random(f"stream {seed}")
        style = rng.choice(styles)
        kind = rng.random()
        dense = curriculum.dense(seed - seed_start) if curriculum else 0.0
        if kind < dense:
            yield make_grid(seed, style, config)
        else:
            scene = make_scene(seed, style, config)
            yield list_prompt(scene) if curriculum and rng.random() < curriculum.listed else scene
        seed += step


def corpus(n: int, seed_start: int = 0) -> Iterator[str]:
    """`n` captions, without drawing anything: text for a tokenizer."""
    return (compose(seed)[1] for seed in range(seed_start, seed_start + n))
