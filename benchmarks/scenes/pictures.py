"""Backgrounds and looks of the independent scenes, drawn with Pillow."""

import io
import math
from collections.abc import Callable
from random import Random

from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from demo.world.sprites import Style, sprite

Size = tuple[int, int]  # width, height
RGB = tuple[int, int, int]

TINTS: dict[str, RGB] = {
    "red": (205, 30, 45),
    "orange": (255, 140, 0),
    "yellow": (250, 220, 50),
    "green": (34, 139, 34),
    "blue": (30, 80, 220),
    "purple": (128, 40, 150),
    "pink": (255, 130, 180),
    "brown": (139, 75, 30),
}
BLACK_AND_WHITE = "black-and-white"


def cut_out(style: Style, concept: str, look: str | None, side: int, mirrored: bool) -> Image.Image:
    """Draw a concept in RGBA, with `side` pixels on its longer side; `look` is a tint, black-and-white or None."""
    source = sprite(style, concept, 160)
    alpha, drawing = Image.fromarray(source.alpha), Image.fromarray(source.rgb)
    if look is not None:
        gray = ImageOps.autocontrast(ImageOps.grayscale(drawing), cutoff=1)
        if look == BLACK_AND_WHITE:
            drawing = ImageOps.grayscale(drawing).convert("RGB")
        else:
            tint = TINTS[look]
            dark, light = tuple(c // 5 for c in tint), tuple(255 - (255 - c) // 3 for c in tint)
            drawing = ImageOps.colorize(gray, dark, light, tint)
    drawing.putalpha(alpha)
    scale = side / max(drawing.size)
    width, height = (max(round(edge * scale), 2) for edge in drawing.size)
    drawing = drawing.resize((width, height), Image.Resampling.LANCZOS)
    return ImageOps.mirror(drawing) if mirrored else drawing


def shade(rng: Random, colour: RGB, change: int) -> RGB:
    red, green, blue = (min(max(c + rng.randint(-change, change), 0), 255) for c in colour)
    return red, green, blue


def wood(rng: Random, size: Size) -> Image.Image:
    base = rng.choice(((186, 140, 99), (222, 196, 160), (120, 84, 58)))
    image = Image.new("RGB", size, base)
    draw = ImageDraw.Draw(image)
    plank = size[1] // rng.randint(4, 8)
    for top in range(0, size[1], plank):
        draw.rectangle((0, top, size[0], top + plank), shade(rng, base, 12), (70, 50, 30))
        for _ in range(6):
            y = top + rng.randrange(plank)
            draw.line((0, y, size[0], y + rng.randint(-3, 3)), shade(rng, base, 25))
    return image


def hills(rng: Random, size: Size) -> Image.Image:
    width, height = size
    sky = Image.linear_gradient("L").resize(size)
    image = ImageOps.colorize(sky, (110, 170, 235), (235, 245, 255))
    draw = ImageDraw.Draw(image)
    for layer in range(3):
        top, wave, phase = height * (0.55 + 0.15 * layer), rng.uniform(0.5, 2.5), rng.uniform(0, 6)
        line = [
            (x, top + height * 0.06 * math.sin(wave * math.tau * x / width + phase)) for x in range(0, width + 8, 8)
        ]
        draw.polygon([(0, height), *line, (width, height)], shade(rng, (90 + 20 * layer, 150, 70), 20))
    return image


def graph_paper(rng: Random, size: Size) -> Image.Image:
    image, step = Image.new("RGB", size, (250, 250, 244)), rng.randint(9, 22)
    draw = ImageDraw.Draw(image)
    for x in range(0, size[0], step):
        draw.line((x, 0, x, size[1]), (150, 190, 220))
    for y in range(0, size[1], step):
        draw.line((0, y, size[0], y), (150, 190, 220))
    return image


def rays(rng: Random, size: Size) -> Image.Image:
    base = shade(rng, (200, 180, 150), 50)
    image = Image.new("RGB", size, base)
    draw, n, reach = ImageDraw.Draw(image), rng.randint(8, 20), sum(size)
    cx, cy, other = rng.randrange(size[0]), rng.randrange(size[1]), shade(rng, base, 40)
    for index in range(n):
        a, b = (math.tau * (index + part) / n for part in (0.0, 0.5))
        ends = [(cx + reach * math.cos(angle), cy + reach * math.sin(angle)) for angle in (a, b)]
        draw.polygon([(cx, cy), *ends], other)
    return image


def tiles(rng: Random, size: Size) -> Image.Image:
    small = size[0] // rng.randint(12, 40) + 2, size[1] // rng.randint(12, 40) + 2
    base, image = shade(rng, (170, 170, 180), 60), Image.new("RGB", small)
    image.putdata([shade(rng, base, 28) for _ in range(small[0] * small[1])])
    return image.resize(size, Image.Resampling.NEAREST)


def watercolour(rng: Random, size: Size) -> Image.Image:
    image = Image.new("RGB", (9, 7))
    base = shade(rng, (210, 200, 205), 45)
    image.putdata([shade(rng, base, 40) for _ in range(63)])
    grain = Image.effect_noise(size, 24).convert("RGB")
    return Image.blend(image.resize(size, Image.Resampling.BICUBIC), grain, 0.12)


def night(rng: Random, size: Size) -> Image.Image:
    image = Image.new("RGB", size, shade(rng, (24, 26, 60), 14))
    draw = ImageDraw.Draw(image)
    for _ in range(120):
        x, y, r = rng.randrange(size[0]), rng.randrange(size[1]), rng.choice((0, 0, 1))
        draw.ellipse((x - r, y - r, x + r, y + r), (230, 230, 200))
    return image


def waves(rng: Random, size: Size) -> Image.Image:
    base, period = shade(rng, (80, 160, 190), 30), rng.randint(14, 30)
    image = Image.new("RGB", size, base)
    draw = ImageDraw.Draw(image)
    for y in range(0, size[1] + period, period):
        line = [(x, y + 5 * math.sin(x / period)) for x in range(0, size[0] + 4, 4)]
        draw.line(line, shade(rng, (170, 215, 230), 20), 3)
    return image


def leaves(rng: Random, size: Size) -> Image.Image:
    base = shade(rng, (120, 150, 90), 30)
    image = Image.new("RGB", size, base)
    draw = ImageDraw.Draw(image)
    for _ in range(260):
        x, y, w, h = rng.randrange(size[0]), rng.randrange(size[1]), rng.randint(4, 26), rng.randint(3, 12)
        draw.ellipse((x, y, x + w, y + h), shade(rng, base, 28))
    return image.filter(ImageFilter.GaussianBlur(rng.choice((0, 1, 2))))


def studio(rng: Random, size: Size) -> Image.Image:
    glow = ImageChops.invert(Image.radial_gradient("L")).resize(size)
    return ImageOps.colorize(glow, shade(rng, (150, 150, 155), 40), (252, 252, 250))


BACKGROUNDS: dict[str, Callable[[Random, Size], Image.Image]] = {
    "on wooden planks": wood,
    "under a blue sky": hills,
    "on graph paper": graph_paper,
    "in front of rays": rays,
    "on tiles": tiles,
    "on watercolour paper": watercolour,
    "under the stars": night,
    "above the waves": waves,
    "among leaves": leaves,
    "in a studio": studio,
}


def photograph(image: Image.Image, rng: Random) -> Image.Image:
    """Imitate a photograph: light, sharpness, and JPEG of quality 35 to 95."""
    image = ImageEnhance.Brightness(image).enhance(rng.uniform(0.8, 1.15))
    image = ImageEnhance.Contrast(image).enhance(rng.uniform(0.8, 1.2))
    if rng.random() < 0.3:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.9)))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=rng.randint(35, 95))
    return Image.open(file).convert("RGB")
