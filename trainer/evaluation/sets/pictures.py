"""Read the images of a task, cut boxes out, and resize them to the input of a model.

Shapes: s side of the model's input.
"""

import errno
import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypergrit_common.files import read_limited
from hypergrit_common.images import ImageRejected, decode
from hypergrit_common.samples import LIMITS, MAX_SAMPLE_BYTES
from trainer.data.preprocess import PreprocessConfig, resize_tensor
from trainer.data.preprocess import fit as fit_config
from trainer.evaluation.task import Fit, ImageSource


@dataclass(frozen=True)
class Content:
    """The content of an image: the bytes of its file, or its pixels in a file of many images."""

    data: bytes | NDArray[np.uint8]

    @property
    def digest(self) -> bytes:
        """SHA-256 of the bytes; for pixels, of their shape and values."""
        if isinstance(self.data, bytes):
            return hashlib.sha256(self.data).digest()
        return hashlib.sha256(repr(self.data.shape).encode() + np.ascontiguousarray(self.data).tobytes()).digest()

    def pixels(self) -> NDArray[np.uint8]:
        """RGB pixels [h w 3]. Raises ImageRejected if the bytes cannot be decoded."""
        return decode(self.data, LIMITS) if isinstance(self.data, bytes) else self.data


def is_below(source: ImageSource, root: Path) -> bool:
    """True for an image below `root` by its name: a list may name any file. Links are followed, often to another disk."""
    return source.stack is not None or Path(os.path.abspath(source.path)).is_relative_to(os.path.abspath(root))


def read_content(source: ImageSource) -> Content:
    """Read an image without decoding it. Raises OSError, also for large files and for names that no file can have."""
    if source.stack is not None and source.index is not None:
        return Content(source.stack[source.index])
    try:
        return Content(read_limited(source.path, MAX_SAMPLE_BYTES))
    except ValueError as error:  # a null character, or a character that the file system cannot encode
        raise OSError(errno.EINVAL, f"{str(source.path)!r} is not the name of a file: {error}") from error


def cut(pixels: NDArray[np.uint8], box: Sequence[float] | None) -> NDArray[np.uint8]:
    """The part [h w 3] of an image inside a box (left, top, width, height), with edges rounded to whole pixels.

    Raises ImageRejected if no pixel of the box is inside the image.
    """
    if box is None:
        return pixels
    height, width = pixels.shape[:2]
    left, top, right, bottom = box[0], box[1], box[0] + box[2], box[1] + box[3]
    if any(map(math.isnan, (left, top, right, bottom))):
        raise ImageRejected("too_small", f"box {list(box)} has no edges")
    x0, x1 = (round(min(max(x, 0), width)) for x in (left, right))  # an edge may be infinite
    y0, y1 = (round(min(max(y, 0), height)) for y in (top, bottom))
    if x1 <= x0 or y1 <= y0:
        raise ImageRejected("too_small", f"box {list(box)} has no pixel inside the image of {width} x {height} px")
    return pixels[y0:y1, x0:x1]


def to_square(pixels: NDArray[np.uint8], fit: Fit, size_px: int) -> Tensor:
    """Resize RGB pixels [h w 3] to uint8 [3 s s]; the modes are those of `Fit`."""
    if fit != "pad":
        return fit_config(pixels, PreprocessConfig(size_px=size_px, mode="crop" if fit == "crop" else "squash"))
    height, width = pixels.shape[:2]
    scale = size_px / max(height, width)
    height, width = (max(1, min(size_px, round(side * scale))) for side in (height, width))
    image = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)
    square = torch.full((3, size_px, size_px), 255, dtype=torch.uint8)
    top, left = (size_px - height) // 2, (size_px - width) // 2
    square[:, top : top + height, left : left + width] = resize_tensor(image, height, width)
    return square
