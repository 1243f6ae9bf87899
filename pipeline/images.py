"""Resizing, cropping and encoding of decoded images. An image is uint8 RGB [h, w, 3]."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar, Final, Literal

import cv2
import numpy as np

from hypergrit_common.config import check_range
from hypergrit_common.images import STORED_IMAGE_LIMITS, Image, decode

ResizeMode = Literal["keep_ratio", "border", "none"]

MAX_SIDE_PX: Final = 65_500
"""Longest side that libjpeg can encode."""


@dataclass(frozen=True, kw_only=True)
class ResizeConfig:
    """The size at which an image is stored."""

    # keep_ratio: the shorter side becomes `size`, and smaller images stay as they are; border: fit into a white square of
    # side `size`; none: keep the size
    mode: ResizeMode = "keep_ratio"
    # shorter side of the stored image, or side of the square, in pixels
    size: int = 256
    # bicubic: torch's, with antialiasing; area: OpenCV's, as in img2dataset, which needs no torch. Shapes are the same
    kernel: Literal["bicubic", "area"] = "bicubic"

    jpeg_quality: ClassVar[int] = 95
    """JPEG quality of the stored image, that of img2dataset."""

    def __post_init__(self) -> None:
        check_range(self, "size", least=1, most=MAX_SIDE_PX)


def shrink(image: Image, height: int, width: int) -> Image:
    """Shrink an image to `height` x `width` pixels with OpenCV's area interpolation."""
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def resize(image: Image, height: int, width: int) -> Image:
    """Resize an image to `height` x `width` pixels: bicubic with antialiasing, with torch's fast uint8 kernel."""
    # torch takes seconds to import, and callers that only crop and encode do not need it.
    import torch
    from torch.nn.functional import interpolate

    if image.shape[:2] == (height, width):
        return image
    pixels = torch.from_numpy(image if image.flags.writeable else image.copy())[None].permute(0, 3, 1, 2)
    out = interpolate(pixels, size=(height, width), mode="bicubic", antialias=True)
    return out[0].permute(1, 2, 0).contiguous().numpy()


def resize_as(image: Image, config: ResizeConfig) -> Image:
    """Resize an image for storage, as `config` specifies."""
    if keeps_size(image.shape[1], image.shape[0], config):
        return image
    if config.mode == "border":
        return border_square(image, config.size)
    short = min(image.shape[:2])
    height, width = (max(1, round(side * config.size / short)) for side in image.shape[:2])
    return (resize if config.kernel == "bicubic" else shrink)(image, height, width)


def keeps_size(width: int, height: int, config: ResizeConfig) -> bool:
    """Return True if an image of this size is stored at its own size."""
    match config.mode:
        case "none":
            return True
        case "border":
            return width == height == config.size
        case "keep_ratio":
            return min(width, height) <= config.size


def encode_jpeg(image: Image, quality: int = 95) -> bytes:
    """Encode an image as JPEG, 4:2:0, without metadata: equal pixels give equal bytes.

    Raises ValueError if a side is longer than `MAX_SIDE_PX`.
    """
    is_encoded, data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not is_encoded:
        raise ValueError(f"an image of shape {image.shape} cannot be encoded as JPEG")
    return data.tobytes()


Corners = tuple[float, float, float, float]
"""x_min, y_min, x_max, y_max as fractions of width and height."""


def corners(box: Mapping[str, Any]) -> Corners:
    """The corners of a schemas.rows.BOX or GIVEN_BOX."""
    return box["x_min"], box["y_min"], box["x_max"], box["y_max"]


def iou(a: Corners, b: Corners) -> float:
    """Return the intersection over union of two boxes, 0 if both are empty."""
    shared = overlap(a, b)
    union = area(a) + area(b) - shared
    return shared / union if union > 0 else 0.0


def overlap(a: Corners, b: Corners) -> float:
    """Return the area of the intersection of two boxes."""
    return max(min(a[2], b[2]) - max(a[0], b[0]), 0.0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0.0)


def area(box: Corners) -> float:
    """Return the area of a box; 0 if it is empty."""
    return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)


def crop_box(image: Image, xyxy: Sequence[float]) -> Image:
    """Cut out a box, given in fractions of width and height; corners are truncated to whole pixels, as in HyCoCLIP.

    Returns a view; it is empty if the truncated box contains no pixel.
    """
    height, width = image.shape[:2]
    x_min, y_min, x_max, y_max = (min(max(value, 0.0), 1.0) for value in xyxy)
    return image[int(y_min * height) : int(y_max * height), int(x_min * width) : int(x_max * width)]


def border_square(image: Image, size: int = 224) -> Image:
    """Fit an image into a white square of side `size`, centred, as in the training data of HyCoCLIP.

    It is shrunk with OpenCV's area interpolation and enlarged with its Lanczos interpolation.
    """
    long = max(image.shape[:2])
    height, width = (max(1, round(side * size / long)) for side in image.shape[:2])
    if long != size:
        method = cv2.INTER_AREA if size < long else cv2.INTER_LANCZOS4
        image = np.asarray(cv2.resize(image, (width, height), interpolation=method), np.uint8)
    square = np.full((size, size, 3), 255, np.uint8)
    top, left = (size - height) // 2, (size - width) // 2
    square[top : top + height, left : left + width] = image
    return square


# Tell photographs from the drawn scenes on which the miniature models were trained, by the steps between pixels.
#
# A drawing has areas of one colour with sharp borders; in a photograph, colours change in small steps almost everywhere.

SIDE_PX: Final = 128
"""Shorter side at which images are compared, so that noise and JPEG artefacts average out."""
SMALL_STEP, LARGE_STEP = 8, 40
"""A step between neighbouring pixels within these limits, in levels of 255, is soft: neither an area nor a border."""
MAX_SOFT_SHARE: Final = 0.15
"""Median share of soft steps above which the images of a job are unlike drawn scenes.

Of 240 scenes of the demo, 14 % are above the limit (median 0.06), and 95 % of 160 crops of 16 photographs (median 0.32);
of 2,000 random samples of 24 images, none was judged wrongly. Photographs of objects on a plain background pass as
drawings, and drawings full of texture as photographs.
"""
MIN_IMAGES: Final = 8
MINIATURE: Final = "miniature"
UNLIKE_DRAWINGS: Final = (
    "{settings}: the miniature models know only drawn scenes, and these images look like photographs; choose real models: "
    "grounder=models/glip_t scorer=openai/clip-vit-base-patch32 (docs/models.md)"
)
"""Warning; `settings` are those that name a miniature."""


def soft_share(image: Image) -> float:
    """Return the share of the pixels of an RGB image [h w 3] that differ softly from a neighbour.

    >>> import numpy as np
    >>> soft_share(np.full((64, 64, 3), 200, np.uint8))
    0.0
    >>> soft_share(np.tile(np.arange(0, 250, 10, np.uint8)[:, None, None], (1, 25, 3)))
    1.0
    """
    height, width = image.shape[:2]
    scale = min(1.0, SIDE_PX / min(height, width))
    size = max(2, round(width * scale)), max(2, round(height * scale))
    pixels = cv2.resize(image, size, interpolation=cv2.INTER_AREA).astype(np.int16)
    down = np.abs(np.diff(pixels, axis=0))[:, :-1].max(axis=-1)
    right = np.abs(np.diff(pixels, axis=1))[:-1].max(axis=-1)
    step = np.maximum(down, right)
    return float(((step > SMALL_STEP) & (step < LARGE_STEP)).mean())


def are_unlike_drawings(images: Iterable[Image]) -> bool:
    """Return True if at least MIN_IMAGES images are given, and their median share of soft steps is that of photographs."""
    shares = [soft_share(image) for image in images]
    return len(shares) >= MIN_IMAGES and median(shares) > MAX_SOFT_SHARE


def miniature_models(grounder: str, scorer: str) -> list[str]:
    """Return the settings among `grounder` and `scorer` whose model is a miniature.

    >>> miniature_models("models/glip_t", "miniature")
    ['scorer']
    """
    return [name for name, model in (("grounder", grounder), ("scorer", scorer)) if model == MINIATURE]


# A cache of decoded images for the stages of one process.


class StoredImages:
    """Decode stored images and cache up to `max_bytes` of pixels.

    `ground` and `score` decode the same images. When the cache is full, further images are decoded at every call.
    """

    def __init__(self, max_bytes: int = 256_000_000) -> None:
        self.max_bytes = max_bytes
        self._cache: dict[bytes, Image] = {}
        self._free_bytes = max_bytes

    def __call__(self, data: bytes) -> Image:
        pixels = self._cache.get(data)
        if pixels is None:
            pixels = decode(data, STORED_IMAGE_LIMITS)
            if pixels.nbytes <= self._free_bytes:
                self._cache[data] = pixels
                self._free_bytes -= pixels.nbytes
        return pixels

    def clear(self) -> None:
        """Empty the cache at the end of a shard."""
        self._cache.clear()
        self._free_bytes = self.max_bytes
