import io
import random

import cv2
import numpy as np
import PIL.Image
import pytest
import torch
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.functional import resized_crop

from hypergrit_common.images import ImageRejected
from hypergrit_common.samples import EncodedImage, Region
from tests.trainer.data.samples import jpeg
from trainer.data.crops import Crop, draw_crop, draw_region, overlap, reduce_region, reduction_factor, write_crops

SCALE, RATIO = (0.5, 1.0), (0.75, 4 / 3)


def photo(width: int, height: int, quality: int = 95) -> bytes:
    """Encode smooth blobs of colour with some edges as a JPEG."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (height // 24 + 1, width // 24 + 1, 3), dtype=np.uint8)
    pixels = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    cv2.circle(pixels, (width // 2, height // 2), min(width, height) // 4, (250, 30, 30), 5)
    return cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def crop_with_torchvision(data: bytes, region: Region, size: int) -> np.ndarray:
    image = PIL.Image.open(io.BytesIO(data)).convert("RGB")
    x, y, width, height = region
    return np.asarray(resized_crop(image, y, x, height, width, [size, size], InterpolationMode.BICUBIC, antialias=True))


@pytest.mark.parametrize(
    ("width", "height", "region", "factor", "mean", "maximum"),
    [
        (224, 224, Region(11, 5, 190, 170), 1, 0.6, 16),  # enlarged: OpenCV's kernel instead of Pillow's
        (400, 300, Region(40, 8, 300, 280), 1, 0.1, 2),  # shrunk: the same kernel
        (1024, 768, Region(101, 41, 800, 700), 2, 0.6, 26),
        (2048, 1536, Region(3, 1, 1801, 1533), 4, 0.6, 26),
    ],
)
def test_pixels_differ_from_torchvisions_by_a_few_levels(
    width: int, height: int, region: Region, factor: int, mean: float, maximum: int
) -> None:
    data, out, crop = photo(width, height), np.zeros((224, 224, 3), np.uint8), Crop(region, Region(0, 0, 224, 224))
    write_crops(EncodedImage(data), [crop], [out])
    assert reduction_factor([crop]) == factor
    x, y, columns, rows = (factor * value for value in reduce_region(region, factor))
    assert max(abs(x - region.x), abs(y - region.y), abs(columns - region.width), abs(rows - region.height)) <= factor
    difference = np.abs(out.astype(int) - crop_with_torchvision(data, Region(x, y, columns, rows), 224))
    assert difference.mean() < mean
    assert difference.max() <= maximum


def test_reduced_region_is_not_empty_and_inside_the_reduced_image() -> None:
    generator, target = random.Random(0), Region(0, 0, 24, 1)
    for _ in range(300):
        width, height = generator.randint(192, 500), generator.randint(8, 30)
        region = draw_region(generator, width, height, (0.3, 1.0), (4.0, 60.0))
        factor = reduction_factor([Crop(region, target)])
        x, y, columns, rows = reduce_region(region, factor)
        assert columns >= 1 <= rows
        assert 0 <= x <= x + columns <= -(-width // factor)
        assert 0 <= y <= y + rows <= -(-height // factor)


def test_regions_have_the_distribution_of_torchvisions() -> None:
    torch.manual_seed(0)
    generator, image = random.Random(0), torch.zeros(3, 300, 200)
    theirs = np.array([RandomResizedCrop.get_params(image, SCALE, RATIO) for _ in range(4000)])[:, [1, 0, 3, 2]]
    ours = np.array([draw_region(generator, 200, 300, SCALE, RATIO) for _ in range(4000)])
    spread = theirs.std(0)
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 0.1 * spread).all()
    assert np.allclose(ours.std(0), spread, rtol=0.07)
    for quantile in (0.05, 0.5, 0.95):
        assert (np.abs(np.quantile(ours, quantile, 0) - np.quantile(theirs, quantile, 0)) < 0.2 * spread).all()


def test_region_is_inside_the_image_even_if_no_ratio_fits() -> None:
    generator = random.Random(0)
    for width, height in ((1, 1), (500, 3), (3, 500), (17, 23)):
        for _ in range(50):
            x, y, w, h = draw_region(generator, width, height, SCALE, RATIO)
            assert 0 <= x < x + w <= width
            assert 0 <= y < y + h <= height
    assert draw_region(generator, 500, 3, SCALE, RATIO) == Region(248, 0, 4, 3)


def test_reduced_crop_is_never_smaller_than_its_target() -> None:
    target = Region(0, 0, 224, 224)
    sides = {447: 1, 448: 2, 895: 2, 896: 4, 1792: 8, 9000: 8}
    assert {side: reduction_factor([Crop(Region(0, 0, side, side), target)]) for side in sides} == sides
    assert reduction_factor([Crop(Region(0, 0, 3000, 3000), target), Crop(Region(0, 0, 300, 300), target)]) == 1


def test_crop_of_a_padded_image_is_white_outside_the_image() -> None:
    crop = draw_crop(random.Random(0), True, 64, (1.0, 1.0), (1.0, 1.0), Region(10, 20, 40, 80))
    assert crop == Crop(Region(10, 20, 40, 80), Region(16, 0, 32, 64))
    out = np.zeros((64, 64, 3), np.uint8)
    write_crops(EncodedImage(jpeg(100, 120, 120)), [crop], [out])
    assert (out[:, :16] == 255).all()
    assert (out[:, 48:] == 255).all()
    assert (out[:, 16:48] < 120).all()


def test_crop_that_shows_only_padding_is_white() -> None:
    assert overlap(0, 50, 10, 64) == (0, 10, 0, 13)
    assert overlap(-60, 50, 10, 64) is None
    assert overlap(10, 50, 10, 64) is None
    out = np.zeros((8, 8, 3), np.uint8)
    write_crops(EncodedImage(jpeg()), [None], [out])
    assert (out == 255).all()


def test_exif_orientation_is_applied() -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # rotated clockwise for display: the dark left half becomes the top
    image = EncodedImage(jpeg(200, 64, 32, exif=exif))
    assert (image.width, image.height) == (32, 64)
    pixels = image.decode(1)
    assert pixels[:24].mean() < 110 < 190 < pixels[40:].mean()


@pytest.mark.parametrize("mode", ["CMYK", "L", "RGBA", "P", "LA"])
def test_other_modes_are_converted_to_rgb(mode: str) -> None:
    file = io.BytesIO()
    PIL.Image.new("RGB", (20, 10), (204, 204, 204)).convert(mode).save(file, "JPEG" if mode in ("CMYK", "L") else "PNG")
    pixels = EncodedImage(file.getvalue()).decode(1)
    assert pixels.shape == (10, 20, 3)
    assert np.abs(pixels.astype(int) - 204).max() < 6


def test_transparent_pixels_become_white() -> None:
    file = io.BytesIO()
    PIL.Image.new("RGBA", (4, 4), (0, 0, 0, 0)).save(file, "PNG")
    assert (EncodedImage(file.getvalue()).decode(1) == 255).all()


def test_damaged_images_are_rejected() -> None:
    intact = photo(100, 80)
    for data in (
        b"",
        b"no image",
        intact[: len(intact) // 2],
        intact[:20],
        b"\xff\xd8\xff" + b"\0" * 100 + b"\xff\xd9",
    ):
        with pytest.raises(ImageRejected):
            EncodedImage(data).decode(1)


def test_image_with_too_many_pixels_in_its_header_is_rejected_before_decoding() -> None:
    data = bytearray(jpeg())
    start_of_frame = data.index(b"\xff\xc0")
    data[start_of_frame + 5 : start_of_frame + 9] = b"\xff\xff\xff\xff"
    with pytest.raises(ImageRejected, match="65535 x 65535"):
        EncodedImage(bytes(data))
