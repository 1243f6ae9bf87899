"""Looks of objects: colours by several ways of painting, black and white, and the words for them."""

from dataclasses import dataclass
from random import Random
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from demo.world.vocabulary import COLOURS

# RGB of further colour words.
MORE_COLOURS: dict[str, tuple[int, int, int]] = {
    "black": (38, 38, 42),
    "white": (238, 238, 236),
    "turquoise": (52, 196, 190),
    "golden": (214, 168, 44),
    "silver": (186, 190, 196),
    "maroon": (120, 26, 40),
    "navy": (28, 42, 104),
    "beige": (222, 204, 166),
    "lime": (158, 220, 48),
    "magenta": (218, 44, 150),
}
ALL_COLOURS = {**COLOURS, **MORE_COLOURS}
SYNONYMS: dict[str, tuple[str, ...]] = {
    "gray": ("gray", "grey"),
    "purple": ("purple", "violet"),
    "turquoise": ("turquoise", "teal", "cyan"),
    "golden": ("golden", "gold"),
    "silver": ("silver", "silvery"),
    "navy": ("navy", "navy blue", "dark blue"),
    "maroon": ("maroon", "dark red"),
    "magenta": ("magenta", "pink"),
    "lime": ("lime", "light green", "bright green"),
}
BLACK_AND_WHITE = "black and white"
BLACK_AND_WHITE_WORDS = ("black and white", "black-and-white", "grayscale", "monochrome", "colorless", "gray")
# Colours that people would confuse; a scene never needs both to tell two objects apart.
ALIKE = (
    {"gray", "silver", "white", BLACK_AND_WHITE},
    {"black", BLACK_AND_WHITE, "gray"},
    {"red", "maroon", "pink", "magenta", "orange"},
    {"purple", "magenta", "pink"},
    {"blue", "navy", "turquoise", "purple"},
    {"yellow", "golden", "beige", "orange", "lime"},
    {"green", "lime", "turquoise"},
    {"brown", "maroon", "golden", "orange", "beige"},
)


@dataclass(frozen=True, kw_only=True)
class Look:
    """The appearance of one object. `colour` None keeps the artwork's own colours."""

    colour: str | None = None
    painting: str = "ramp"
    shift: tuple[int, int, int] = (0, 0, 0)  # added to the colour's RGB


def alike(a: str | None, b: str | None) -> bool:
    """True if the colours cannot tell two objects of one kind apart."""
    return a == b or a is None or b is None or any(a in group and b in group for group in ALIKE)


def draw_look(rng: Random, concept: str) -> Look:
    """Draw the look of an object: its own colours (55 %), black and white, or painted in one colour."""
    kind = rng.random()
    if kind < 0.55:
        return Look()
    if kind < 0.66:
        return Look(colour=BLACK_AND_WHITE, painting="gray")
    names = list(COLOURS) if rng.random() < 0.7 else list(MORE_COLOURS)
    colour = rng.choice([name for name in names if name != concept])
    painting = rng.choice(("ramp", "ramp", "multiply", "blend", "hue", "colorize", "duotone"))
    if colour in ("black", "white", "gray", "silver") and painting == "hue":
        painting = "blend"
    red, green, blue = (rng.randint(-22, 22) for _ in range(3))
    return Look(colour=colour, painting=painting, shift=(red, green, blue))


def words_for(look: Look, rng: Random) -> str:
    """Draw an adjective for the look; "" for an object in its own colours."""
    if look.colour is None:
        return ""
    if look.colour == BLACK_AND_WHITE:
        return rng.choice(BLACK_AND_WHITE_WORDS)
    word = rng.choice(SYNONYMS.get(look.colour, (look.colour,)))
    if look.colour in COLOURS and rng.random() < 0.08:
        word = f"{rng.choice(('bright', 'tinted', 'plain', f'{word}-tinted', 'vivid'))} {word}"
    return word


def paint(rgb: NDArray[Any], tone: NDArray[np.uint8], look: Look) -> NDArray[Any]:
    """Return the drawing `rgb` [h w 3] with the look applied; `tone` [h w] is its luminance of normalised range."""
    if look.colour is None:
        return rgb
    if look.colour == BLACK_AND_WHITE:
        return cv2.cvtColor(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    colour = np.clip(np.array(ALL_COLOURS[look.colour]) + look.shift, 0, 255).astype(np.float32)
    level = tone[..., None].astype(np.float32) / 255
    match look.painting:
        case "multiply":
            painted = np.minimum(0.25 + 1.1 * level, 1.0) * colour
        case "blend":
            painted = 0.35 * rgb.astype(np.float32) + 0.65 * colour
        case "hue":
            hsv = cv2.cvtColor(rgb, cv2.COLOR_RGB2HSV)
            wanted = cv2.cvtColor(colour.astype(np.uint8)[None, None], cv2.COLOR_RGB2HSV)[0, 0]
            hsv[..., 0] = wanted[0]
            hsv[..., 1] = np.maximum(hsv[..., 1] // 2, int(wanted[1]) * 3 // 4)
            share = max(float(wanted[2]) / 255, 0.3)
            hsv[..., 2] = (hsv[..., 2] * share * 0.5 + tone * share * 0.5).astype(np.uint8)
            return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
        case "colorize":
            gray = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)[..., None].astype(np.float32) / 255
            painted = np.where(gray < 0.5, 2 * gray * colour, 255 - 2 * (1 - gray) * (255 - colour))
            painted = 0.7 * painted + 0.3 * colour
        case "duotone":
            painted = np.where(level < 0.4, colour * 0.3, colour)
        case _:
            stops = np.stack([colour * 0.16, colour * 0.62, colour, colour * 0.55 + 255 * 0.45])
            ramp = np.stack([np.interp(np.arange(256), [0, 70, 140, 255], stops[:, c]) for c in range(3)], axis=1)
            return ramp.astype(np.uint8)[tone]
    return np.clip(painted, 0, 255).astype(np.uint8)
