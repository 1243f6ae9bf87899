"""The perceptual hash of an image: similar pictures have hashes that differ in few bits."""

from typing import Final

import cv2
import numpy as np

from common.images import Image

SIDE_PX: Final = 32
"""Side of the square to which an image is shrunk."""
N_WAVES: Final = 8
"""Number of horizontal, and of vertical, frequencies whose coefficients give one bit each."""
N_BITS: Final = N_WAVES * N_WAVES


def cosines() -> np.ndarray:
    """Return the rows 1 to `N_WAVES` of the DCT-II of `SIDE_PX` values: float64 [N_WAVES, SIDE_PX]."""
    waves, places = np.arange(1, N_WAVES + 1)[:, None], np.arange(SIDE_PX)
    return np.cos(np.pi * waves * (2 * places + 1) / (2 * SIDE_PX))


COSINES: Final = cosines()


def perceptual_hash(image: Image) -> int:
    """Return the 64-bit pHash of an image, uint8 RGB [h, w, 3] (Zauner 2010, section 3.2.1).

    The grey image is shrunk to 32 x 32 pixels, and each of its 8 x 8 lowest frequencies other than the constant ones
    gives a bit: 1 if its coefficient is above their median. So the hash survives other sizes, qualities and
    brightnesses, but no crop, mirror image or rotation. All images of one colour have the hash 0.
    """
    grey = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY)
    small = cv2.resize(grey, (SIDE_PX, SIDE_PX), interpolation=cv2.INTER_AREA).astype(np.float64)
    # Rounded, so that neither the order of sums nor the noise of coefficients that are 0 decides a bit.
    coefficients = np.round(np.einsum("ui,ij,vj->uv", COSINES, small, COSINES, optimize=False), 3)
    bits = (coefficients > np.median(coefficients)).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")
