"""Training pairs of the miniature CLIP: crops with phrases, and scenes with captions."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor

from demo.world.captions import GROUNDED_KINDS, Phrase
from demo.world.scenes import Curriculum, Object, Scene, scene_stream
from demo.world.sprites import TRAIN_STYLES
from demo.world.vocabulary import CATEGORY_NOUNS, COLOURS, CONCEPT, CONCEPTS
from demo.world.wide.looks import ALL_COLOURS, BLACK_AND_WHITE, BLACK_AND_WHITE_WORDS, SYNONYMS, alike
from demo.world.wide.stream import mixed_stream
from demo.world.wide.words import GENERAL_NOUNS, perhaps
from pipeline.quality.boxes import iou
from trainer.data.preprocess import PreprocessConfig, fit

CONCEPT_INDEX = {concept.name: index for index, concept in enumerate(CONCEPTS)}
COLOUR_NAMES = (*ALL_COLOURS, BLACK_AND_WHITE)  # those of `COLOURS` first
COLOUR_INDEX: dict[str | None, int] = {None: 0, **{name: index for index, name in enumerate(COLOUR_NAMES, start=1)}}
COLOUR_WORDS = frozenset(
    word
    for text in (*COLOUR_NAMES, *BLACK_AND_WHITE_WORDS, *(word for words in SYNONYMS.values() for word in words))
    for word in text.split()
)
PixelBox = tuple[float, float, float, float]  # x_min, y_min, x_max, y_max in pixels


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Shares and ranges of the training pairs."""

    jitter: float = 0.12  # maximum shift of a box's edge, as a share of its side; imitates a detector's errors
    crops_per_object: int = 2
    background_share: float = 0.12  # background crops per object crop
    scene_share: float = 0.15  # full scenes with captions per object crop
    template_share: float = 0.3  # share of crops with a template text ("a red car") instead of the caption's phrase
    expression_share: float = 0.15  # share of phrases extended to a referring expression ("a car to the left of a dog")
    wide_share: float = 0.0  # share of scenes of the wide world
    buffer: int = 3000  # size of the shuffle buffer in crops, so that the crops of one scene are spread over batches


@dataclass(frozen=True, kw_only=True)
class Crop:
    """A crop of one object and a text that describes it."""

    pixels: Tensor  # uint8 [3 size size]
    text: str
    text_concepts: frozenset[int]  # indices of the concepts that the text may describe
    text_colour: int  # 0: the text has no colour
    concept: int
    colour: int  # 0: untinted


@dataclass(frozen=True, kw_only=True)
class Batch:
    """b object crops with texts, m background crops, and n full scenes with captions."""

    crops: Tensor  # uint8 [b+m 3 s s], background crops last
    texts: list[str]  # b
    compatible: (
        Tensor  # bool [b b+m]; True if text i may describe crop j; the loss then does not use the pair as a negative
    )
    scenes: Tensor  # uint8 [n 3 s s]
    captions: list[str]  # n


@cache
def concepts_of_category(noun: str) -> frozenset[int]:
    """Return the indices of the concepts that a general noun describes or may describe ("a toy" for a rocket)."""
    entries = [entry for entry in CATEGORY_NOUNS if entry.noun == noun]
    names = {name for entry in entries for name in (*entry.applies_to, *entry.excluded_by)}
    found = {c.name for c in CONCEPTS if c.name in names or c.category in names}
    found |= {name for word in GENERAL_NOUNS if noun in (word.noun, word.plural) for name in perhaps(word)}
    return frozenset(CONCEPT_INDEX[name] for name in found)


@cache
def colours_fit() -> Tensor:
    """Return a mask [c+1 c+1], True if a text with the first colour may describe a crop of the second; 0: no colour.

    Two of `COLOURS` never do; the further colours of the wide world may be taken for those that are like them.
    """

    def fits(text: str, crop: str | None) -> bool:
        return text == crop or (crop is not None and not {text, crop} <= COLOURS.keys() and alike(text, crop))

    names = (None, *COLOUR_NAMES)
    return torch.tensor([[text is None or fits(text, crop) for crop in names] for text in names])


def crop_pixels(scene: Scene, box: PixelBox, preprocess: PreprocessConfig) -> Tensor:
    """Crop a box to bytes [3 size size]. Edges are rounded to pixels; each side has at least 2 px."""
    height, width = scene.image.shape[:2]
    x0, y0 = min(max(round(box[0]), 0), width - 2), min(max(round(box[1]), 0), height - 2)
    x1, y1 = max(min(round(box[2]), width), x0 + 2), max(min(round(box[3]), height), y0 + 2)
    return fit(scene.image[y0:y1, x0:x1], preprocess)


def jitter_box(box: PixelBox, jitter: float, rng: Random) -> PixelBox:
    """Shift each edge of a box by at most `jitter` times the side."""
    w, h = box[2] - box[0], box[3] - box[1]
    dx0, dy0, dx1, dy1 = (rng.uniform(-jitter, jitter) for _ in range(4))
    return box[0] + dx0 * w, box[1] + dy0 * h, box[2] + dx1 * w, box[3] + dy1 * h


def background_box(scene: Scene, rng: Random, max_iou: float = 0.25) -> PixelBox | None:
    """Draw a box with IoU below `max_iou` with every object; None after 8 failed attempts."""
    height, width = scene.image.shape[:2]
    for _ in range(8):
        w, h = (20 * 7 ** rng.random() for _ in range(2))
        x, y = rng.uniform(0, max(width - w, 1)), rng.uniform(0, max(height - h, 1))
        box = (x, y, min(x + w, width), min(y + h, height))
        if all(iou(box, obj.box) < max_iou for obj in scene.objects):
            return box
    return None


def template_text(obj: Object, rng: Random) -> tuple[str, str | None]:
    """Draw a template text for an object. Returns the text and its colour word; half of the texts have none."""
    colour = obj.colour if rng.random() < 0.5 else None
    noun = CONCEPT[obj.concept].noun
    name = f"{colour} {noun}" if colour else noun
    return rng.choice((name, f"a {name}", f"the {name}", f"a picture of a {name}")), colour


def caption_text(scene: Scene, phrase: Phrase, config: DataConfig, rng: Random) -> str:
    """Return the phrase or, with probability `expression_share`, the referring expression that starts with it."""
    later = [other.end for other in scene.phrases if other.start > phrase.end]
    if later and rng.random() < config.expression_share and "." not in scene.caption[phrase.end : min(later)]:
        return scene.caption[phrase.start : min(later)]
    return scene.caption[phrase.start : phrase.end]


def object_crops(scene: Scene, config: DataConfig, preprocess: PreprocessConfig, rng: Random) -> Iterator[Crop]:
    """Yield `crops_per_object` jittered crops of each object with their texts."""
    phrase_of = {i: phrase for phrase in scene.phrases if phrase.kind in GROUNDED_KINDS for i in phrase.objects}
    for index, obj in enumerate(scene.objects):
        for _ in range(config.crops_per_object):
            concepts = frozenset([CONCEPT_INDEX[obj.concept]])
            text, colour = template_text(obj, rng)
            if index in phrase_of and rng.random() >= config.template_share:
                phrase = phrase_of[index]
                text = caption_text(scene, phrase, config, rng)
                adjectives = scene.caption[phrase.start : phrase.noun_start].lower().replace("-", " ").split()
                colour = obj.colour if COLOUR_WORDS.intersection(adjectives) else None
                if phrase.kind == "category":
                    concepts |= concepts_of_category(scene.caption[phrase.noun_start : phrase.noun_end].lower())
            yield Crop(
                pixels=crop_pixels(scene, jitter_box(obj.box, config.jitter, rng), preprocess),
                text=text,
                text_concepts=concepts,
                text_colour=COLOUR_INDEX[colour],
                concept=CONCEPT_INDEX[obj.concept],
                colour=COLOUR_INDEX[obj.colour],
            )


def compatibility(crops: list[Crop], n_background: int) -> Tensor:
    """Return a mask [b b+n_background], True if a text may describe a crop. A text without a colour fits all colours."""
    concept_fits = torch.zeros(len(crops), len(CONCEPTS), dtype=torch.bool)
    for row, crop in enumerate(crops):
        concept_fits[row, list(crop.text_concepts)] = True
    text_colour = torch.tensor([crop.text_colour for crop in crops])[:, None]
    colour = torch.tensor([crop.colour for crop in crops])[None]
    fits = concept_fits[:, [crop.concept for crop in crops]] & colours_fit()[text_colour, colour]
    return F.pad(fits, (0, n_background))


def batches(size: int, config: DataConfig, preprocess: PreprocessConfig, seed_start: int, step: int) -> Iterator[Batch]:
    """Yield batches indefinitely from the training scenes of `seed_start`, `seed_start + step`, ..."""
    rng = Random(f"batches {seed_start}")
    if config.wide_share:
        none_dense = Curriculum(dense_first=0.0, dense_last=0.0, list_prompt_share=0.0)
        stream = mixed_stream(seed_start, TRAIN_STYLES, step=step, curriculum=none_dense, wide_share=config.wide_share)
    else:
        stream = scene_stream(seed_start, TRAIN_STYLES, step=step)
    buffer: list[Crop] = []
    background: list[Tensor] = []
    scenes: list[tuple[Tensor, str]] = []
    n_background, n_scenes = round(size * config.background_share), round(size * config.scene_share)
    while True:
        while len(buffer) < config.buffer or len(background) < n_background or len(scenes) < n_scenes:
            scene = next(stream)
            buffer += object_crops(scene, config, preprocess, rng)
            if len(background) < n_background and (box := background_box(scene, rng)):
                background.append(crop_pixels(scene, box, preprocess))
            if len(scenes) < n_scenes:
                scenes.append((fit(scene.image, preprocess), scene.caption))
        rng.shuffle(buffer)
        chosen, buffer = buffer[:size], buffer[size:]
        yield Batch(
            crops=torch.stack([crop.pixels for crop in chosen] + background),
            texts=[crop.text for crop in chosen],
            compatible=compatibility(chosen, len(background)),
            scenes=torch.stack([pixels for pixels, _ in scenes]),
            captions=[caption for _, caption in scenes],
        )
        background, scenes = [], []


# RGB to YIQ: luminance and two colour axes, in which saturation is the length and hue the angle.
YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


def augment(images: Tensor, generator: torch.Generator, flip: bool) -> Tensor:
    """Augment images [b 3 s s] in [0, 1] by colour, shading, blur, line width and optionally horizontal flips.

    This keeps the model from learning features of a single style. Hue is rotated by at most 12 degrees, so that colour
    words remain correct. Scenes are not flipped, because captions contain "left" and "right".
    """
    b, _, size, _ = images.shape

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(b).uniform_(low, high, generator=generator)

    hue, saturation, contrast = uniform(-0.21, 0.21), uniform(0.55, 1.45), uniform(0.65, 1.35)
    colour = torch.zeros(b, 3, 3)
    colour[:, 0, 0] = 1
    colour[:, 1, 1] = colour[:, 2, 2] = saturation * hue.cos()
    colour[:, 1, 2], colour[:, 2, 1] = -saturation * hue.sin(), saturation * hue.sin()
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
