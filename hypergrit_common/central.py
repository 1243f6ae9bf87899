"""Thin images for models: the part that remains of them, without computing the rest.

Image processors resize the shorter side first, and crop the centre then: of 2 x 1000 px they make 224 x 112,000.
"""

from collections.abc import Callable
from math import ceil, floor
from typing import Final

import numpy as np
import PIL.Image

from hypergrit_common.image_codec import Image

MAX_RATIO: Final = 4
"""Images of at most this aspect ratio stay as they are: what a processor makes of them is small."""
SUPPORT: Final = 4
"""Pixels around a resized one that its filter reads, at most: 3 with Lanczos."""


def central_part(
    image: Image,
    edge: int,
    crop: int,
    resample: int = PIL.Image.Resampling.BICUBIC,
    *,
    to_length: Callable[[float], int] = int,
    to_first: Callable[[float], int] = round,
    is_pillow: bool = False,
) -> Image:
    """Resize a thin image so that its shorter side is `edge`, and keep about `crop` pixels in the middle of the longer one.

    A processor that resizes and crops gives the same pixels for the result as for the whole image, up to 2 levels of 255.

    Args:
        image: uint8 RGB [h w 3].
        edge: shorter side after the processor's resize, in pixels.
        crop: longer side of its crop.
        resample: filter, as Pillow numbers them.
        to_length: how the processor rounds the resized longer side.
        to_first: how it rounds the first pixel of the crop.
        is_pillow: whether it resizes with Pillow, which shrinks the longer side first; torch resizes the width first.

    Returns:
        [h' w' 3], whose sides are `edge` and the larger of `edge` and `crop`; images of other ratios as they are.
    """
    height, width = image.shape[:2]
    short, long = sorted((height, width))
    if short * MAX_RATIO >= long:
        return image
    length, kept = to_length(edge * long / short), max(edge, crop)
    if kept >= length:
        return image
    first, scale = to_first((length - crop) / 2) - to_first((kept - crop) / 2), long / length
    start, end, margin = first * scale, (first + kept) * scale, ceil(SUPPORT * max(scale, 1))
    low, high = max(floor(start) - margin, 0), min(ceil(end) + margin, long)
    is_wide = width > height
    part = PIL.Image.fromarray(image[:, low:high] if is_wide else image[low:high])
    along = (start - low, end - low)
    box = (along[0], 0, along[1], short) if is_wide else (0, along[0], short, along[1])
    size = (kept, edge) if is_wide else (edge, kept)
    # Each pass rounds, so that their order counts. Pillow would choose that of the part by its own sides.
    if is_pillow and scale > 1 and not is_wide:
        part = part.resize((short, kept), resample, box=(0, box[1], short, box[3]))
        return np.array(part.resize(size, resample))
    part = part.resize((size[0], part.height), resample, box=(box[0], 0, box[2], part.height))
    return np.array(part.resize(size, resample, box=(0, box[1], size[0], box[3])))


def limit_aspect_ratio(image: Image, most: int) -> Image:
    """Repeat the rows or columns of an image until its aspect ratio is at most `most`.

    Processors that resize the longer side of a very thin image would otherwise leave 0 pixels of the shorter one. Boxes
    stay the same, since they are fractions of the image.
    """
    height, width = image.shape[:2]
    return image.repeat(-(-width // (height * most)), axis=0).repeat(-(-height // (width * most)), axis=1)
