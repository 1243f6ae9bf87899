"""Backgrounds of six families: flat, gradient, noise, stripes, landscape and blobs."""

import colorsys
from functools import cache
from random import Random

import cv2
import numpy as np
from numpy.typing import NDArray

from hypergrit_common.images import Image

FAMILIES = ("flat", "gradient", "noise", "stripes", "landscape", "blobs")


def background_colour(rng: Random) -> tuple[int, int, int]:
    """Draw an RGB colour, pale with 80 % probability and dark otherwise."""
    if rng.random() < 0.8:
        red, green, blue = colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.02, 0.35), rng.uniform(0.82, 1.0))
    else:
        red, green, blue = colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.1, 0.5), rng.uniform(0.3, 0.6))
    return round(red * 255), round(green * 255), round(blue * 255)


def near_colour(colour: tuple[int, int, int], rng: Random, max_change: int) -> tuple[int, int, int]:
    """Draw an RGB colour whose channels differ from `colour` by at most `max_change`."""
    red, green, blue = (min(max(channel + rng.randint(-max_change, max_change), 0), 255) for channel in colour)
    return red, green, blue


def background(rng: Random, width: int, height: int) -> Image:
    """Draw a background [height width 3] in RGB."""
    base = background_colour(rng)
    image = np.empty((height, width, 3), np.uint8)
    cv2.rectangle(image, (0, 0), (width, height), base, cv2.FILLED)
    match rng.choice(FAMILIES):
        case "flat":
            pass
        case "gradient":
            image = stretch([[background_colour(rng), background_colour(rng)], [base, base]], width, height)
        case "noise":
            rows, columns = rng.randint(3, 7), rng.randint(3, 7)
            image = stretch([[near_colour(base, rng, 36) for _ in range(columns)] for _ in range(rows)], width, height)
        case "stripes":
            period, angle = rng.choice((8, 12, 18, 26, 40)), rng.choice((0, 30, 45, 90, 135))
            image = np.array([base, near_colour(base, rng, 34)], np.uint8)[stripes(period, angle, width, height)]
        case "landscape":
            horizon = round(height * rng.uniform(0.45, 0.8))
            sky, ground = (rng.randint(150, 200), rng.randint(200, 230), rng.randint(235, 255)), background_colour(rng)
            image[:horizon] = stretch([[sky], [near_colour(sky, rng, 30)]], width, horizon)
            image[horizon:] = ground
        case "blobs":
            for _ in range(rng.randint(5, 14)):
                centre = rng.randrange(width), rng.randrange(height)
                axes = rng.randint(8, width // 4), rng.randint(8, height // 4)
                cv2.ellipse(
                    image, centre, axes, rng.randrange(180), 0, 360, near_colour(base, rng, 32), -1, cv2.LINE_AA
                )
    return image


def stretch(grid: list[list[tuple[int, int, int]]], width: int, height: int) -> Image:
    """Interpolate a coarse grid of colours to an image [height width 3]."""
    return np.asarray(cv2.resize(np.array(grid, np.uint8), (width, height), interpolation=cv2.INTER_LINEAR), np.uint8)


@cache
def stripes(period: int, angle: int, width: int, height: int) -> NDArray[np.uint8]:
    """Return a mask [height width] that is 1 on every second stripe. Cached, as few combinations exist per canvas."""
    radians = np.deg2rad(angle)
    y, x = np.mgrid[:height, :width]
    return np.asarray((x * np.cos(radians) + y * np.sin(radians)) % period < period / 2, np.uint8)


@cache
def grain() -> Image:
    """Return noise [1024 1024 3] around 128. Images use random windows of it, which is far cheaper than new noise."""
    return np.clip(np.random.default_rng(0).normal(128, 24, (1024, 1024, 3)), 0, 255).astype(np.uint8)


def add_camera_effects(image: Image, rng: Random) -> Image:
    """Change the brightness, blur 20 % of the images, and add pixel noise, similar to a camera or JPEG compression."""
    height, width = image.shape[:2]
    if rng.random() < 0.2:
        image = np.asarray(cv2.GaussianBlur(image, (3, 3), rng.uniform(0.4, 0.9)), np.uint8)
    noise = grain()
    rows, columns = -(-height // 512), -(-width // 512)
    if rows > 1 or columns > 1:
        noise = np.tile(noise, (rows, columns, 1))
    top, left = rng.randrange(noise.shape[0] - height + 1), rng.randrange(noise.shape[1] - width + 1)
    window = noise[top : top + height, left : left + width]
    strength = rng.uniform(0.0, 0.3)
    return np.asarray(cv2.addWeighted(image, rng.uniform(0.85, 1.06), window, strength, -128 * strength), np.uint8)
