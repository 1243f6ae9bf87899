"""Images: decoding of every format and mode, limits, resizing, crops, and the cache of decoded images."""

import io
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypergrit_common.images import ORIENTATION_TAG, ImageLimits, ImageRejected, decode, decode_reduced
from pipeline import images
from pipeline.images import ResizeConfig, StoredImages
from tests.pipeline.stages.download.server import png_header


def gradient(height: int = 48, width: int = 64) -> np.ndarray:
    """A smooth gradient, so that JPEG changes it little."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) * 127 // (height + width)], -1).astype(np.uint8)


def encoded(image: np.ndarray | PIL.Image.Image, format_: str, **options: object) -> bytes:
    out = io.BytesIO()
    (image if isinstance(image, PIL.Image.Image) else PIL.Image.fromarray(image)).save(out, format_, **options)
    return out.getvalue()


def rejection(data: bytes, **limits: float) -> str:
    with pytest.raises(ImageRejected) as caught:
        decode(data, ImageLimits(**limits))
    return caught.value.reason


@pytest.mark.parametrize("format_", ["PNG", "BMP", "TIFF", "JPEG", "GIF", "WEBP"])
def test_every_format_decodes_to_the_same_picture(format_: str) -> None:
    options = {"JPEG": {"quality": 98}, "WEBP": {"lossless": True}}.get(format_, {})
    decoded = decode(encoded(gradient(), format_, **options))
    assert decoded.shape == (48, 64, 3)
    assert np.abs(decoded.astype(int) - gradient()).mean() < 6


def test_the_fast_jpeg_path_gives_the_pixels_of_pillow() -> None:
    data = encoded(gradient(), "JPEG", quality=80)
    np.testing.assert_array_equal(decode(data), np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB")))


def test_cmyk_becomes_rgb() -> None:
    decoded = decode(encoded(PIL.Image.fromarray(gradient()).convert("CMYK"), "JPEG", quality=98))
    assert np.abs(decoded.astype(int) - gradient()).mean() < 6


def test_sixteen_bit_images_keep_the_upper_eight_bits() -> None:
    grey = np.linspace(0, 65535, 64 * 48).reshape(48, 64).astype(np.uint16)
    np.testing.assert_array_equal(decode(encoded(grey, "PNG"))[..., 0], (grey >> 8).astype(np.uint8))


def test_transparent_pixels_become_white() -> None:
    clear = PIL.Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    assert (decode(encoded(clear, "PNG")) == 255).all()
    assert (decode(encoded(clear.convert("P"), "PNG", transparency=0)) == 255).all()


def test_an_animation_decodes_to_its_first_frame() -> None:
    frames = [PIL.Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(data)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied_to_pixels_and_sizes(format_: str) -> None:
    exif = PIL.Image.Exif()
    exif[ORIENTATION_TAG] = 6
    data = encoded(gradient(), format_, exif=exif)
    decoded = decode_reduced(data, ImageLimits(), None)
    assert (decoded.original_width, decoded.original_height, decoded.is_plain) == (48, 64, False)
    assert np.abs(decoded.pixels.astype(int) - np.rot90(gradient(), -1)).mean() < 6


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "GIF", "WEBP", "TIFF"])
def test_truncated_file_is_undecodable(format_: str) -> None:
    data = encoded(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8), format_)
    assert rejection(data[: len(data) // 2]) == "undecodable"


def test_html_is_not_an_image() -> None:
    assert rejection(b"<html><body>Not found</body></html>") == "not_an_image"
    assert rejection(b"") == "not_an_image"


def test_a_decompression_bomb_is_rejected_by_its_header() -> None:
    assert rejection(png_header(9000, 9000)) == "too_many_pixels"
    assert rejection(png_header(60_000, 60_000)) == "too_many_pixels"
    assert rejection(png_header(60, 60)) == "undecodable"
    assert rejection(encoded(gradient(), "JPEG"), max_pixels=100) == "too_many_pixels"


def test_tiny_and_elongated_images_are_rejected() -> None:
    assert rejection(encoded(gradient(5, 64), "PNG"), min_side_px=6) == "too_small"
    assert rejection(encoded(gradient(10, 64), "PNG"), max_aspect_ratio=6) == "extreme_aspect_ratio"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"]), st.data())
def test_damaged_bytes_are_rejected_or_decoded_but_never_crash(format_: str, data: st.DataObject) -> None:
    raw = bytearray(encoded(gradient(16, 16), format_))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode(bytes(raw), ImageLimits(max_pixels=1_000_000))
        assert decoded.ndim == 3
        assert decoded.dtype == np.uint8
    except ImageRejected:
        pass


def test_a_large_jpeg_is_reduced_while_decoding_to_at_least_twice_the_target() -> None:
    data = encoded(gradient(1000, 1400), "JPEG")
    decoded = decode_reduced(data, ImageLimits(), 224)
    assert decoded.pixels.shape == (500, 700, 3)
    assert (decoded.original_width, decoded.original_height) == (1400, 1000)
    assert decode_reduced(data, ImageLimits(), 251).pixels.shape == (1000, 1400, 3)


def test_an_orientation_that_pillow_cannot_read_is_not_applied() -> None:
    exif = PIL.Image.Exif()
    exif[ORIENTATION_TAG] = 6
    data = encoded(gradient(), "JPEG", exif=exif)
    damaged = data.replace(b"Exif\0\0MM", b"Exif\0\0\0\0")
    assert decode(data).shape == (64, 48, 3)
    assert decode(damaged).shape == (48, 64, 3)
    assert decode_reduced(damaged, ImageLimits(), 10).pixels.shape == (24, 32, 3)


def test_an_orientation_in_xmp_is_applied() -> None:
    data = encoded(gradient(), "JPEG", xmp=b'<x:xmpmeta tiff:Orientation="6"/>')
    assert decode(data).shape == (64, 48, 3)


@pytest.mark.parametrize("options", [{}, {"quality": 95, "subsampling": 0}, {"progressive": True}])
def test_a_reduced_jpeg_has_the_pixels_of_pillow(options: dict[str, Any]) -> None:
    noisy = np.random.default_rng(0).integers(0, 256, (403, 517, 3)).astype(np.uint8)
    data = encoded(noisy, "JPEG", **options)
    for reduction, short_side in ((2, 100), (4, 50), (8, 25)):
        with PIL.Image.open(io.BytesIO(data)) as file:
            file.draft("RGB", (517 // reduction, 403 // reduction))
            np.testing.assert_array_equal(decode_reduced(data, ImageLimits(), short_side).pixels, np.asarray(file))


@pytest.mark.parametrize("mode", ["none", "border", "keep_ratio"])
@pytest.mark.parametrize("size", [(24, 24), (24, 40), (40, 24), (20, 24), (48, 64)])
def test_images_that_keep_their_size_are_known_before_they_are_resized(mode: Any, size: tuple[int, int]) -> None:
    config, image = ResizeConfig(mode=mode, size=24), gradient(*size)
    assert images.keeps_size(size[1], size[0], config) == (images.resize_as(image, config).shape == image.shape)


def test_keep_ratio_shrinks_the_shorter_side_to_size_and_enlarges_nothing() -> None:
    config = ResizeConfig(mode="keep_ratio", size=24)
    assert images.resize_as(gradient(48, 64), config).shape == (24, 32, 3)
    assert images.resize_as(gradient(20, 64), config).shape == (20, 64, 3)
    assert images.resize_as(gradient(), ResizeConfig(mode="none")).shape == (48, 64, 3)


def test_resize_is_close_to_pillows_bicubic() -> None:
    ours = images.resize(gradient(200, 300), 80, 120).astype(int)
    theirs = np.asarray(PIL.Image.fromarray(gradient(200, 300)).resize((120, 80), PIL.Image.Resampling.BICUBIC))
    assert np.abs(ours - theirs).max() <= 2


def test_border_square_shrinks_by_area_and_centres_on_white() -> None:
    image = gradient(448, 224)
    square = images.border_square(image, 224)
    assert square.shape == (224, 224, 3)
    assert (square[:, :56] == 255).all()
    assert (square[:, 168:] == 255).all()
    np.testing.assert_array_equal(square[:, 56:168], cv2.resize(image, (112, 224), interpolation=cv2.INTER_AREA))


def test_border_square_enlarges_by_lanczos() -> None:
    image = gradient(56, 112)
    expected = cv2.resize(image, (224, 112), interpolation=cv2.INTER_LANCZOS4)
    np.testing.assert_array_equal(images.border_square(image)[56:168], expected)


def test_crop_box_truncates_corners_to_whole_pixels_inside_the_image() -> None:
    image = gradient(10, 20)
    np.testing.assert_array_equal(images.crop_box(image, (0.1, 0.25, 0.99, 1.0)), image[2:10, 2:19])
    assert images.crop_box(image, (-0.5, 0, 2.0, 1)).shape == (10, 20, 3)
    assert images.crop_box(image, (0.5, 0.5, 0.5, 0.9)).size == 0


def test_stored_images_are_decoded_once_while_the_cache_has_room() -> None:
    data = [images.encode_jpeg(np.full((10, 10, 3), grey, np.uint8)) for grey in (0, 100, 200)]
    decode = StoredImages(max_bytes=600)
    first = [decode(jpeg) for jpeg in data]
    again = [decode(bytes(bytearray(jpeg))) for jpeg in data]  # equal bytes in other objects
    assert [a is b for a, b in zip(first, again, strict=True)] == [True, True, False]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    decode.clear()
    assert decode(data[2]) is decode(data[2])
