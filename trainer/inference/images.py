"""Images that the user passes to the Python API."""

from pathlib import Path

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from hypergrit_common.errors import UserError
from hypergrit_common.images import ImageRejected, decode, to_pixels

ImageInput = str | Path | PIL.Image.Image | NDArray[np.uint8]
"""A path, a PIL image, or an RGB array, uint8 [h w 3]."""


def read_image(image: ImageInput) -> NDArray[np.uint8]:
    """Read an image as upright RGB, uint8 [h w 3]. The same picture gives the same pixels as a path and as a PIL image.

    Raises UserError for a file that cannot be read as an image, and for an array of another type or shape.
    """
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise UserError(f"an image is an array {image.dtype} {list(image.shape)}; give uint8 [height, width, 3]")
        return image
    try:
        if isinstance(image, PIL.Image.Image):
            return to_pixels(image)
        return decode(Path(image).read_bytes())
    except (OSError, ValueError, ImageRejected) as error:
        raise UserError(f"{image} cannot be read as an image: {error}") from error
