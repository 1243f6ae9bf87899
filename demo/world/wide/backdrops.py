"""Backgrounds and camera effects of the wide world: textures, patterns, saturated colours, JPEG of low quality."""

from collections.abc import Callable
from random import Random

import cv2
import numpy as np

from demo.world.backgrounds import add_camera_effects, background, background_colour, near_colour, stretch
from hypergrit_common.images import Image

Colour = tuple[int, int, int]


def backdrop(rng: Random, side: int) -> Image:
    """Draw a background [side side 3] in RGB: 30 % as in the narrow world, the others from `TEXTURES`."""
    if rng.random() < 0.3:
        return background(rng, side, side)
    base = any_colour(rng)
    other = near_colour(base, rng, rng.choice((20, 40, 90))) if rng.random() < 0.75 else any_colour(rng)
    image = rng.choice(TEXTURES)(rng, side, base, other)
    if rng.random() < 0.3:
        image = add_grain(image, rng, rng.uniform(3, 16))
    return image


def any_colour(rng: Random) -> Colour:
    """Draw a colour: white, as in the narrow world, or any."""
    kind = rng.random()
    if kind < 0.12:
        return 255, 255, 255
    if kind < 0.6:
        return background_colour(rng)
    return rng.randrange(256), rng.randrange(256), rng.randrange(256)


def filled(side: int, colour: Colour) -> Image:
    image = np.empty((side, side, 3), np.uint8)
    image[:] = colour
    return image


def generator(rng: Random) -> np.random.Generator:
    return np.random.default_rng(rng.getrandbits(32))


def add_grain(image: Image, rng: Random, strength: float) -> Image:
    noise = generator(rng).normal(0, strength, (*image.shape[:2], rng.choice((1, 3))))
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def checkers(rng: Random, side: int, base: Colour, other: Colour) -> Image:
    cell = rng.randint(6, 48)
    y, x = np.mgrid[:side, :side] // cell
    return np.array([base, other], np.uint8)[(x + y) % 2]


def dots(rng: Random, side: int, base: Colour, other: Colour) -> Image:
    image, step = filled(side, base), rng.randint(10, 40)
    for y in range(0, side + step, step):
        for x in range(0, side + step, step):
            cv2.circle(image, (x + (y // step % 2) * step // 2, y), max(step // 4, 1), other, -1, cv2.LINE_AA)
    return image


def bricks(rng: Random, side: int, base: Colour, other: Colour) -> Image:
    image, height = filled(side, base), rng.randint(10, 28)
    width = height * rng.choice((2, 3))
    for row, y in enumerate(range(0, side, height)):
        cv2.line(image, (0, y), (side, y), other, 1 + height // 12)
        for x in range(-(row % 2) * width // 2, side, width):
            cv2.line(image, (x, y), (x, y + height), other, 1 + height // 12)
    return image


def clouds(rng: Random, side: int, base: Colour, other: Colour) -> Image:
    noise, values = generator(rng), np.zeros((side, side), np.float32)
    for octave in range(2, rng.randint(5, 7)):
        grid = noise.random((2**octave, 2**octave)).astype(np.float32)
        values += cv2.resize(grid, (side, side), interpolation=cv2.INTER_CUBIC) / 2 ** (octave - 2)
    share = np.clip((values - values.min()) / np.ptp(values), 0, 1)[..., None]
    return (np.array(base) * (1 - share) + np.array(other) * share).astype(np.uint8)


def cells(rng: Random, side: int, base: Colour, other: Colour) -> Image:
    small = 56
    points = generator(rng).random((rng.randint(4, 30), 2)) * small
    y, x = np.mgrid[:small, :small]
    nearest = ((x[..., None] - points[:, 0]) ** 2 + (y[..., None] - points[:, 1]) ** 2).argmin(axis=2)
    shades = np.array([near_colour(rng.choice((base, other)), rng, 30) for _ in points], np.uint8)
    method = rng.choice((cv2.INTER_NEAREST, cv2.INTER_LINEAR))
    return np.asarray(cv2.resize(shades[nearest], (side, side), interpolation=method), np.uint8)


def strokes(rng: Random, side: int, base: Colour, other: Colour) -> Image:
    image = filled(side, base)
    for _ in range(rng.randint(5, 120)):
        x, y, length = rng.randrange(side), rng.randrange(side), rng.randint(4, side // 3)
        end = x + rng.randint(-length, length), y + rng.randint(-length, length)
        cv2.line(image, (x, y), end, near_colour(other, rng, 20), rng.randint(1, 3), cv2.LINE_AA)
    return image


def shapes(rng: Random, side: int, base: Colour, other: Colour) -> Image:
    image = filled(side, base)
    for _ in range(rng.randint(3, 18)):
        x, y, size = rng.randrange(side), rng.randrange(side), rng.randint(5, side // 4)
        colour = near_colour(rng.choice((base, other)), rng, 45)
        if rng.random() < 0.5:
            cv2.rectangle(image, (x, y), (x + size, y + rng.randint(4, size + 4)), colour, -1)
        else:
            corners = np.array([[x + rng.randint(-size, size), y + rng.randint(-size, size)] for _ in range(3)])
            cv2.fillPoly(image, [corners.astype(np.int32)], colour, cv2.LINE_AA)
    return image


def bokeh(rng: Random, side: int, base: Colour, other: Colour) -> Image:
    image = stretch([[base, other], [near_colour(other, rng, 60), base]], side, side)
    for _ in range(rng.randint(4, 16)):
        layer = image.copy()
        centre = rng.randrange(side), rng.randrange(side)
        cv2.circle(layer, centre, rng.randint(6, side // 6), any_colour(rng), -1, cv2.LINE_AA)
        image = np.asarray(cv2.addWeighted(layer, 0.35, image, 0.65, 0), np.uint8)
    return image


def plaid(rng: Random, side: int, base: Colour, other: Colour) -> Image:
    period, share = rng.randint(10, 60), rng.uniform(0.2, 0.6)
    lines = (np.arange(side) % period < period * share).astype(np.float32) / 2
    weight = (lines[:, None] + lines[None] * rng.choice((0, 1)))[..., None]
    return (np.array(base) * (1 - weight) + np.array(other) * weight).astype(np.uint8)


def room(rng: Random, side: int, base: Colour, other: Colour) -> Image:
    horizon = round(side * rng.uniform(0.4, 0.85))
    image = backdrop_half(rng, side, base)
    image[horizon:] = backdrop_half(rng, side, other)[horizon:]
    return image


def backdrop_half(rng: Random, side: int, base: Colour) -> Image:
    draw = rng.choice((checkers, bricks, clouds, plaid, strokes))
    return draw(rng, side, base, near_colour(base, rng, 30))


def radial(rng: Random, side: int, base: Colour, other: Colour) -> Image:
    y, x = np.mgrid[:side, :side]
    distance = np.hypot(x - rng.uniform(0, side), y - rng.uniform(0, side)) / side
    share = np.clip(distance, 0, 1)[..., None]
    return (np.array(base) * (1 - share) + np.array(other) * share).astype(np.uint8)


TEXTURES: tuple[Callable[[Random, int, Colour, Colour], Image], ...] = (
    checkers,
    dots,
    bricks,
    clouds,
    clouds,
    cells,
    strokes,
    shapes,
    bokeh,
    plaid,
    room,
    radial,
)


def degrade(image: Image, rng: Random) -> Image:
    """Imitate cameras and the web: light, contrast, blur by scaling, noise, and JPEG of quality 18 to 95."""
    image = add_camera_effects(image, rng)
    side = image.shape[0]
    if rng.random() < 0.3:
        gain, cast = rng.uniform(0.65, 1.25), [rng.uniform(0.88, 1.12) for _ in range(3)]
        image = np.clip((image.astype(np.float32) - 128) * gain * np.array(cast) + 128, 0, 255).astype(np.uint8)
    if rng.random() < 0.2:
        small = round(side * rng.uniform(0.45, 0.9))
        image = np.asarray(cv2.resize(image, (small, small), interpolation=cv2.INTER_AREA), np.uint8)
        image = np.asarray(cv2.resize(image, (side, side), interpolation=cv2.INTER_LINEAR), np.uint8)
    if rng.random() < 0.15:
        image = add_grain(image, rng, rng.uniform(2, 14))
    if rng.random() < 0.75:
        quality = round(18 + 77 * rng.random() ** 0.7)
        coded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
        image = np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR), np.uint8)
    return image
