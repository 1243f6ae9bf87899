import io
import random

import cv2
import numpy as np
import PIL.Image
import pytest
import torch
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.functional import resized_crop

from common.images import ImageRejected
from tests.trainer.data.samples import jpeg
from trainer.data.crops import (
    Cut,
    Picture,
    Region,
    draw_cut,
    draw_region,
    overlap,
    reduced,
    reduction,
)

SCALE, RATIO = (0.5, 1.0), (0.75, 4 / 3)


def photo(width: int, height: int, quality: int = 95) -> bytes:
    """Smooth blobs of colour with some edges, as a JPEG."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (height // 24 + 1, width // 24 + 1, 3), dtype=np.uint8)
    pixels = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    cv2.circle(pixels, (width // 2, height // 2), min(width, height) // 4, (250, 30, 30), 5)
    return cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def by_torchvision(data: bytes, region: Region, size: int) -> np.ndarray:
    image = PIL.Image.open(io.BytesIO(data)).convert("RGB")
    x, y, width, height = region
    return np.asarray(resized_crop(image, y, x, height, width, [size, size], InterpolationMode.BICUBIC, antialias=True))


@pytest.mark.parametrize(
    ("width", "height", "region", "factor", "mean", "most"),
    [
        (224, 224, Region(11, 5, 190, 170), 1, 0.6, 16),  # enlarged: OpenCV's kernel for Pillow's
        (400, 300, Region(40, 8, 300, 280), 1, 0.1, 2),  # shrunk: the same kernel
        (1024, 768, Region(101, 41, 800, 700), 2, 0.6, 26),
        (2048, 1536, Region(3, 1, 1801, 1533), 4, 0.6, 26),
    ],
)
def test_pixels_are_torchvisions_but_for_a_few_levels(
    width: int, height: int, region: Region, factor: int, mean: float, most: int
) -> None:
    data, out, cut = photo(width, height), np.zeros((224, 224, 3), np.uint8), Cut(region, Region(0, 0, 224, 224))
    Picture(data).write([cut], [out])
    assert reduction([cut]) == factor
    x, y, columns, rows = (factor * value for value in reduced(region, factor))
    assert max(abs(x - region.x), abs(y - region.y), abs(columns - region.width), abs(rows - region.height)) <= factor
    gap = np.abs(out.astype(int) - by_torchvision(data, Region(x, y, columns, rows), 224))
    assert gap.mean() < mean
    assert gap.max() <= most


def test_a_reduced_region_is_never_empty_nor_outside() -> None:
    generator, target = random.Random(0), Region(0, 0, 24, 1)
    for _ in range(300):
        width, height = generator.randint(192, 500), generator.randint(8, 30)
        region = draw_region(generator, width, height, (0.3, 1.0), (4.0, 60.0))
        factor = reduction([Cut(region, target)])
        x, y, columns, rows = reduced(region, factor)
        assert columns >= 1 <= rows
        assert 0 <= x <= x + columns <= -(-width // factor)
        assert 0 <= y <= y + rows <= -(-height // factor)


def test_regions_are_distributed_as_torchvisions() -> None:
    torch.manual_seed(0)
    generator, image = random.Random(0), torch.zeros(3, 300, 200)
    theirs = np.array([RandomResizedCrop.get_params(image, SCALE, RATIO) for _ in range(4000)])[:, [1, 0, 3, 2]]
    ours = np.array([draw_region(generator, 200, 300, SCALE, RATIO) for _ in range(4000)])
    spread = theirs.std(0)
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 0.1 * spread).all()
    assert np.allclose(ours.std(0), spread, rtol=0.07)
    for quantile in (0.05, 0.5, 0.95):
        assert (np.abs(np.quantile(ours, quantile, 0) - np.quantile(theirs, quantile, 0)) < 0.2 * spread).all()


def test_a_region_stays_inside_even_if_no_ratio_fits() -> None:
    generator = random.Random(0)
    for width, height in ((1, 1), (500, 3), (3, 500), (17, 23)):
        for _ in range(50):
            x, y, w, h = draw_region(generator, width, height, SCALE, RATIO)
            assert 0 <= x < x + w <= width
            assert 0 <= y < y + h <= height
    assert draw_region(generator, 500, 3, SCALE, RATIO) == Region(248, 0, 4, 3)


def test_reduction_never_makes_a_cut_smaller_than_its_target() -> None:
    target = Region(0, 0, 224, 224)
    sides = {447: 1, 448: 2, 895: 2, 896: 4, 1792: 8, 9000: 8}
    assert {side: reduction([Cut(Region(0, 0, side, side), target)]) for side in sides} == sides
    assert reduction([Cut(Region(0, 0, 3000, 3000), target), Cut(Region(0, 0, 300, 300), target)]) == 1


def test_a_crop_on_a_square_shows_white_where_the_image_is_not() -> None:
    cut = draw_cut(random.Random(0), True, 64, (1.0, 1.0), (1.0, 1.0), Region(10, 20, 40, 80))
    assert cut == Cut(Region(10, 20, 40, 80), Region(16, 0, 32, 64))
    out = np.zeros((64, 64, 3), np.uint8)
    Picture(jpeg(100, 120, 120)).write([cut], [out])
    assert (out[:, :16] == 255).all()
    assert (out[:, 48:] == 255).all()
    assert (out[:, 16:48] < 120).all()


def test_a_crop_of_padding_alone_is_white() -> None:
    assert overlap(0, 50, 10, 64) == (0, 10, 0, 13)
    assert overlap(-60, 50, 10, 64) is None
    assert overlap(10, 50, 10, 64) is None
    out = np.zeros((8, 8, 3), np.uint8)
    Picture(jpeg()).write([None], [out])
    assert (out == 255).all()


def test_an_orientation_is_applied() -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # turn clockwise to see it: the dark left half comes up
    picture = Picture(jpeg(200, 64, 32, exif=exif))
    assert (picture.width, picture.height) == (32, 64)
    pixels = picture.decode(1)
    assert pixels[:24].mean() < 110 < 190 < pixels[40:].mean()


@pytest.mark.parametrize("mode", ["CMYK", "L", "RGBA", "P", "LA"])
def test_other_kinds_of_images_become_rgb(mode: str) -> None:
    file = io.BytesIO()
    PIL.Image.new("RGB", (20, 10), (204, 204, 204)).convert(mode).save(file, "JPEG" if mode in ("CMYK", "L") else "PNG")
    pixels = Picture(file.getvalue()).decode(1)
    assert pixels.shape == (10, 20, 3)
    assert np.abs(pixels.astype(int) - 204).max() < 6


def test_transparent_parts_are_white() -> None:
    file = io.BytesIO()
    PIL.Image.new("RGBA", (4, 4), (0, 0, 0, 0)).save(file, "PNG")
    assert (Picture(file.getvalue()).decode(1) == 255).all()


def test_damaged_bytes_are_an_error() -> None:
    whole = photo(100, 80)
    for data in (b"", b"no image", whole[: len(whole) // 2], whole[:20], b"\xff\xd8\xff" + b"\0" * 100 + b"\xff\xd9"):
        with pytest.raises(ImageRejected):
            Picture(data).decode(1)


def test_a_header_that_announces_too_much_is_refused_before_decoding() -> None:
    data = bytearray(jpeg())
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = b"\xff\xff\xff\xff"
    with pytest.raises(ImageRejected, match="65535 x 65535"):
        Picture(bytes(data))
