"""Training pairs for the miniature CLIP: crops and what a caption may call them, scenes and their captions."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor

from demo.world.captions import GROUNDED_KINDS, Phrase
from demo.world.scenes import Object, Scene, scene_stream
from demo.world.sprites import TRAIN_STYLES
from demo.world.vocabulary import CATEGORY_NOUNS, COLOURS, CONCEPT, CONCEPTS
from trainer.data.preprocess import PreprocessConfig, fit

CONCEPT_INDEX = {concept.name: index for index, concept in enumerate(CONCEPTS)}
COLOUR_INDEX: dict[str | None, int] = {None: 0, **{colour: index for index, colour in enumerate(COLOURS, start=1)}}
Box = tuple[float, float, float, float]  # x_min, y_min, x_max, y_max in pixels


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Shares and ranges of the training pairs; the rest is the world's."""

    jitter: float = 0.12  # of a box's sides, by which each of its edges may be off, as a detector's are
    crops_per_object: int = 2
    background_share: float = 0.12  # boxes around nothing, for each crop
    scene_share: float = 0.15  # whole scenes with their captions, for each crop
    template_share: float = 0.3  # names by rote ("a red car") in place of the caption's phrase
    expression_share: float = 0.15  # "a car to the left of a dog": the phrase and what is said of it
    buffer: int = 3000  # crops to draw from, so that one scene's do not come together


@dataclass(frozen=True, kw_only=True)
class Crop:
    """One box and a text that is true of it. A colour or concept of nothing is 0 and -1."""

    pixels: Tensor  # uint8 [3 size size]
    text: str
    text_concepts: frozenset[int]  # what the text may be said of, certainly or perhaps
    text_colour: int
    concept: int
    colour: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """b crops with texts, then boxes around nothing; and whole scenes with captions."""

    crops: Tensor  # uint8 [b+m 3 s s], the last m around nothing
    texts: list[str]  # b
    compatible: Tensor  # bool [b b+m], text x crop: not to be held against each other
    scenes: Tensor  # uint8 [n 3 s s]
    captions: list[str]  # n


@cache
def namesakes(noun: str) -> frozenset[int]:
    """The concepts that a category noun is said of, or might be ("a toy" of a rocket)."""
    entry = next(entry for entry in CATEGORY_NOUNS if entry.noun == noun)
    names = {*entry.called, *entry.blocked_by}
    return frozenset(CONCEPT_INDEX[c.name] for c in CONCEPTS if c.name in names or c.category in names)


def cut(scene: Scene, box: Box, preprocess: PreprocessConfig) -> Tensor:
    """The crop of a box as bytes [3 size size]; edges rounded to pixels, at least 2 px a side."""
    height, width = scene.image.shape[:2]
    x0, y0 = min(max(round(box[0]), 0), width - 2), min(max(round(box[1]), 0), height - 2)
    x1, y1 = max(min(round(box[2]), width), x0 + 2), max(min(round(box[3]), height), y0 + 2)
    return fit(scene.image[y0:y1, x0:x1], preprocess)


def jittered(box: Box, jitter: float, rng: Random) -> Box:
    w, h = box[2] - box[0], box[3] - box[1]
    dx0, dy0, dx1, dy1 = (rng.uniform(-jitter, jitter) for _ in range(4))
    return box[0] + dx0 * w, box[1] + dy0 * h, box[2] + dx1 * w, box[3] + dy1 * h


def iou(a: Box, b: Box) -> float:
    w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(w, 0.0) * max(h, 0.0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def empty_box(scene: Scene, rng: Random, max_iou: float = 0.25) -> Box | None:
    """A box that is no object's, though it may hold a piece of one; None where the scene is too full."""
    height, width = scene.image.shape[:2]
    for _ in range(8):
        w, h = (20 * 7 ** rng.random() for _ in range(2))
        x, y = rng.uniform(0, max(width - w, 1)), rng.uniform(0, max(height - h, 1))
        box = (x, y, min(x + w, width), min(y + h, height))
        if all(iou(box, thing.box) < max_iou for thing in scene.objects):
            return box
    return None


def by_rote(thing: Object, rng: Random) -> tuple[str, str | None]:
    """A name for an object and the colour in it; captions name every tint, but "a car" is true of a red one too."""
    colour = thing.colour if rng.random() < 0.5 else None
    noun = CONCEPT[thing.concept].noun
    name = f"{colour} {noun}" if colour else noun
    return rng.choice((name, f"a {name}", f"the {name}", f"a picture of a {name}")), colour


def said_of(scene: Scene, phrase: Phrase, config: DataConfig, rng: Random) -> str:
    """The phrase, or the referring expression that begins with it."""
    later = [other.end for other in scene.phrases if other.start > phrase.end]
    if later and rng.random() < config.expression_share and "." not in scene.caption[phrase.end : min(later)]:
        return scene.caption[phrase.start : min(later)]
    return scene.caption[phrase.start : phrase.end]


def crops_of(scene: Scene, config: DataConfig, preprocess: PreprocessConfig, rng: Random) -> Iterator[Crop]:
    phrase_of = {i: phrase for phrase in scene.phrases if phrase.kind in GROUNDED_KINDS for i in phrase.objects}
    for index, thing in enumerate(scene.objects):
        for _ in range(config.crops_per_object):
            concepts = frozenset([CONCEPT_INDEX[thing.concept]])
            text, colour = by_rote(thing, rng)
            if index in phrase_of and rng.random() >= config.template_share:
                phrase = phrase_of[index]
                text, colour = said_of(scene, phrase, config, rng), thing.colour
                if phrase.kind == "category":
                    concepts |= namesakes(scene.caption[phrase.noun_start : phrase.noun_end])
            yield Crop(
                pixels=cut(scene, jittered(thing.box, config.jitter, rng), preprocess),
                text=text,
                text_concepts=concepts,
                text_colour=COLOUR_INDEX[colour],
                concept=CONCEPT_INDEX[thing.concept],
                colour=COLOUR_INDEX[thing.colour],
            )


def compatible(crops: list[Crop], n_empty: int) -> Tensor:
    """[b b+n_empty]: the text may be said of the crop. A text without a colour fits all colours."""
    said = torch.zeros(len(crops), len(CONCEPTS), dtype=torch.bool)
    for row, crop in enumerate(crops):
        said[row, list(crop.text_concepts)] = True
    text_colour = torch.tensor([crop.text_colour for crop in crops])[:, None]
    colour = torch.tensor([crop.colour for crop in crops])[None]
    fits = said[:, [crop.concept for crop in crops]] & ((text_colour == 0) | (text_colour == colour))
    return F.pad(fits, (0, n_empty))


def batches(size: int, config: DataConfig, preprocess: PreprocessConfig, seed_start: int, step: int) -> Iterator[Batch]:
    """Batches without end from the training scenes of `seed_start`, `seed_start + step`, ..."""
    rng = Random(f"batches {seed_start}")
    stream = scene_stream(seed_start, TRAIN_STYLES, step=step)
    buffer: list[Crop] = []
    empty: list[Tensor] = []
    wholes: list[tuple[Tensor, str]] = []
    n_empty, n_scenes = round(size * config.background_share), round(size * config.scene_share)
    while True:
        while len(buffer) < config.buffer or len(empty) < n_empty or len(wholes) < n_scenes:
            scene = next(stream)
            buffer += crops_of(scene, config, preprocess, rng)
            if len(empty) < n_empty and (box := empty_box(scene, rng)):
                empty.append(cut(scene, box, preprocess))
            if len(wholes) < n_scenes:
                wholes.append((fit(scene.image, preprocess), scene.caption))
        rng.shuffle(buffer)
        chosen, buffer = buffer[:size], buffer[size:]
        yield Batch(
            crops=torch.stack([crop.pixels for crop in chosen] + empty),
            texts=[crop.text for crop in chosen],
            compatible=compatible(chosen, len(empty)),
            scenes=torch.stack([pixels for pixels, _ in wholes]),
            captions=[caption for _, caption in wholes],
        )
        empty, wholes = [], []


# RGB to luminance and two colour axes (YIQ), in which saturation is a length and hue an angle.
YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


def augment(images: Tensor, generator: torch.Generator, flip: bool) -> Tensor:
    """Floats [b 3 s s] in [0, 1] in other light, palette, outline and focus, so that no one artist's habits are learned.

    Hue turns by at most 12 degrees: colour words must stay true. Scenes are not flipped, since captions say "left".
    """
    b, _, size, _ = images.shape

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(b).uniform_(low, high, generator=generator)

    turn, saturation, contrast = uniform(-0.21, 0.21), uniform(0.55, 1.45), uniform(0.65, 1.35)
    colour = torch.zeros(b, 3, 3)
    colour[:, 0, 0] = 1
    colour[:, 1, 1] = colour[:, 2, 2] = saturation * turn.cos()
    colour[:, 1, 2], colour[:, 2, 1] = -saturation * turn.sin(), saturation * turn.sin()
    matrix = torch.linalg.inv(YIQ) @ colour @ YIQ * contrast[:, None, None]
    shift = (1 - contrast) * images.mean(dim=(1, 2, 3)) + uniform(-0.12, 0.12)
    images = torch.baddbmm(shift[:, None, None], matrix, images.flatten(2)).view_as(images)
    ramp = torch.linspace(-1, 1, size)
    shade = uniform(-0.15, 0.15)[:, None, None] * ramp + uniform(-0.15, 0.15)[:, None, None] * ramp[:, None]
    images *= 1 + shade[:, None]
    kind = uniform(0, 1)
    blurred, thinner, thicker = kind < 0.2, (kind >= 0.2) & (kind < 0.3), (kind >= 0.3) & (kind < 0.4)
    images[blurred] = F.avg_pool2d(F.pad(images[blurred], (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    images[thinner] = F.max_pool2d(images[thinner], 3, stride=1, padding=1)
    images[thicker] = -F.max_pool2d(-images[thicker], 3, stride=1, padding=1)
    if flip:
        mirrored = uniform(0, 1) < 0.5
        images[mirrored] = images[mirrored].flip(3)
    return images.clamp_(0, 1)
