"""Scenes of the wide world: a square picture with its objects, and a caption with its phrases, from one seed."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from demo.world.captions import Phrase
from demo.world.layout import WorldConfig
from demo.world.scenes import Curriculum, Object, Scene, list_prompt, make_grid, make_scene, visible_box
from demo.world.sprites import RENDER_PX, VISIBLE_ALPHA, Style, sprite
from demo.world.wide.backdrops import backdrop, degrade
from demo.world.wide.captions import describe
from demo.world.wide.layout import Placed, draw_wide_layout
from demo.world.wide.looks import BLACK_AND_WHITE, paint
from hypergrit_common.images import Image

SIDES = (224, 224, 224, 192, 300, 384, 448)
MIN_VISIBLE = 12  # pixels of an object; smaller ones have no box


def make_wide_scene(seed: int, style: Style) -> Scene:
    """Generate the wide scene of a seed in one style, with 1 to 8 objects."""
    rng = Random(f"wide {seed}")
    side = rng.choice(SIDES)
    objects = draw_wide_layout(rng, side)
    image, found = render_wide(objects, rng, style, side)
    seen = [index for index, item in enumerate(found) if item is not None]
    objects = [objects[index] for index in seen]
    caption, phrases = describe(objects, rng, WorldConfig(width=side, height=side))
    return Scene(
        seed=seed,
        style=style,
        image=image,
        objects=tuple(item for item in found if item is not None),
        caption=caption,
        phrases=tuple[Phrase, ...](phrases),
    )


def wide_caption(seed: int) -> str:
    """Write a caption without rendering a picture, as text for a vocabulary."""
    rng = Random(f"wide {seed}")
    return describe(draw_wide_layout(rng, SIDES[0]), rng, WorldConfig())[0]


def render_wide(objects: Sequence[Placed], rng: Random, style: Style, side: int) -> tuple[Image, list[Object | None]]:
    """Render the objects. Boxes enclose the visible pixels; None for an object that is mostly hidden."""
    image = backdrop(rng, side)
    topmost = np.full((side, side), 255, np.uint8)
    areas = []
    for index, item in enumerate(objects):
        rgb, alpha = drawing(item, style)
        h, w = alpha.shape
        slot = item.slot
        x = min(max(round(slot.cx - w / 2), 0), side - w)
        y = min(max(round(slot.cy - h / 2), 0), side - h)
        window = (slice(y, y + h), slice(x, x + w))
        if item.shadow:
            offset = max(round(slot.side * 0.04), 1)
            shade = cv2.GaussianBlur(np.pad(alpha, ((offset, 0), (offset, 0)))[:h, :w], (5, 5), 2)
            image[window] = (image[window] * (1 - 0.45 * shade[..., None].astype(np.float32) / 255)).astype(np.uint8)
        opacity = alpha[..., None].astype(np.uint16)
        image[window] = (rgb * opacity + image[window].astype(np.uint16) * (255 - opacity) + 127) // 255
        topmost[window][alpha >= VISIBLE_ALPHA] = index
        areas.append(int((alpha >= VISIBLE_ALPHA).sum()))
    found: list[Object | None] = []
    for index, item in enumerate(objects):
        visible = topmost == index
        if visible.sum() < max(MIN_VISIBLE, 0.45 * areas[index]):
            found.append(None)
        else:
            box = visible_box(visible, 0, 0)
            found.append(Object(concept=item.slot.concept.name, colour=item.look.colour, box=box))
    image = degrade(image, rng)
    if all(item.look.colour in (None, BLACK_AND_WHITE) for item in objects) and rng.random() < 0.08:
        image = np.asarray(cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB), np.uint8)
    return image, found


def drawing(item: Placed, style: Style) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return RGB [h w 3] and alpha [h w] of an object with its look, rotation and distortions."""
    slot = item.slot
    source = sprite(style, slot.concept.name, next((px for px in RENDER_PX if px >= slot.side), RENDER_PX[-1]))
    rgb: NDArray[Any] = paint(source.rgb, source.tone, item.look)
    alpha: NDArray[Any] = source.alpha
    h, w = alpha.shape
    w = w * item.stretch
    radians = abs(np.deg2rad(slot.angle))
    scale = slot.side / max(w * np.cos(radians) + h * np.sin(radians), h * np.cos(radians) + w * np.sin(radians))
    size = max(round(w * scale), 2), max(round(h * scale), 2)
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    rgb, alpha = cv2.resize(rgb, size, interpolation=method), cv2.resize(alpha, size, interpolation=method)
    if slot.flip:
        rgb, alpha = cv2.flip(rgb, 1), cv2.flip(alpha, 1)
    if item.outline:
        rgb, alpha = outlined(rgb, alpha, max(round(slot.side * 0.025), 1))
    if slot.angle:
        h, w = alpha.shape
        canvas = (
            max(int(w * np.cos(radians) + h * np.sin(radians)), 2),
            max(int(h * np.cos(radians) + w * np.sin(radians)), 2),
        )
        matrix = cv2.getRotationMatrix2D((w / 2, h / 2), slot.angle, 1.0)
        matrix[:, 2] += (canvas[0] - w) / 2, (canvas[1] - h) / 2
        rgb = cv2.warpAffine(rgb, matrix, canvas, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        alpha = cv2.warpAffine(alpha, matrix, canvas, flags=cv2.INTER_LINEAR)
    return rgb, alpha


def outlined(rgb: NDArray[Any], alpha: NDArray[Any], width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draw a white edge around an object, as on a sticker, inside its original size."""
    h, w = alpha.shape
    if min(h, w) <= 4 * width:
        return rgb, alpha
    inner = (w - 2 * width, h - 2 * width)
    edges = width, width, width, width
    small_rgb = cv2.copyMakeBorder(cv2.resize(rgb, inner), *edges, cv2.BORDER_REPLICATE)
    small = cv2.copyMakeBorder(cv2.resize(alpha, inner), *edges, cv2.BORDER_CONSTANT, value=0)
    grown = cv2.dilate(small, np.ones((2 * width + 1, 2 * width + 1), np.uint8))
    share = small[..., None].astype(np.float32) / 255
    return (small_rgb * share + 255 * (1 - share)).astype(np.uint8), grown


def mixed_stream(
    seed_start: int, styles: tuple[Style, ...], *, step: int, curriculum: Curriculum, wide_share: float
) -> Iterator[Scene]:
    """Yield the scenes of `seed_start`, `seed_start + step`, ... indefinitely.

    A share of `wide_share` of the scenes that are not dense grids is from the wide world.
    """
    seed = seed_start
    while True:
        rng = Random(f"mix {seed}")
        style = rng.choice(styles)
        if rng.random() < curriculum.dense_share(seed - seed_start):
            yield make_grid(seed, style)
        else:
            scene = make_wide_scene(seed, style) if rng.random() < wide_share else make_scene(seed, style)
            if scene.objects:
                yield list_prompt(scene) if rng.random() < curriculum.list_prompt_share else scene
        seed += step
