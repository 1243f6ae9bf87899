"""AVIF, JPEG 2000 and HEIC are decoded in a child process; what is not read is named by its type."""

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from hypergrit_common import image_codec, image_process
from hypergrit_common.image_codec import decode_here
from hypergrit_common.image_header import cost_of, image_size, jpeg_header, type_of
from hypergrit_common.images import ImageLimits, ImageRejected, decode, decode_reduced
from pipeline.commands.evaluation_set import read_evaluation_set
from pipeline.read.listing import list_files
from tests.pipeline.test_images import gradient

LIMITS = ImageLimits()
KINDS: list[tuple[str, dict[str, Any]]] = [("AVIF", {}), ("JPEG2000", {}), ("JPEG2000", {"no_jp2": True})]


def encoded(kind: str, image: PIL.Image.Image | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    (image or PIL.Image.new("RGB", (300, 200), (200, 30, 90))).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_picture_is_decoded_in_a_child(kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(kind, **options)
    found = decode_reduced(data, LIMITS, 64)
    assert (found.original_width, found.original_height, found.original_format) == (300, 200, kind.lower())
    assert found.pixels.shape == (200, 300, 3)
    assert abs(found.pixels.reshape(-1, 3).mean(axis=0) - (200, 30, 90)).max() < 4
    monkeypatch.setattr(image_process, "start_child", None)
    image_process.isolated().close()
    with pytest.raises(TypeError):  # no child, no pixels
        decode(data)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_the_limits_hold_before_any_pixel_is_decoded(kind: str, options: dict[str, Any]) -> None:
    data = encoded(kind, **options)
    for limits, reason in (
        (ImageLimits(max_pixels=50_000), "too_many_pixels"),
        (ImageLimits(min_side_px=201), "too_small"),
        (ImageLimits(max_aspect_ratio=1.4), "extreme_aspect_ratio"),
    ):
        with pytest.raises(ImageRejected, match=reason):
            decode(data, limits)
    assert cost_of(data, 60_000_000).max_s < 1.1
    for part in (data[: len(data) // 2], data[:60]):
        with pytest.raises(ImageRejected, match=r"undecodable: (AVIF|JPEG 2000): "):
            decode(part)


def test_a_header_that_claims_more_than_the_picture_costs_no_more_than_the_limits() -> None:
    data = encoded("JPEG2000", no_jp2=True)
    huge = data[:8] + (60_000).to_bytes(4, "big") * 2 + data[16:]
    with pytest.raises(ImageRejected, match="too_many_pixels"):
        decode(huge)
    assert cost_of(huge, 60_000_000).max_bytes == 256_000_000


def test_orientation_transparency_and_16_bits_are_those_of_other_formats() -> None:
    image = PIL.Image.fromarray(gradient(40, 60))
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    assert decode(encoded("AVIF", image, exif=exif.tobytes())).shape == (60, 40, 3)
    clear = encoded("AVIF", PIL.Image.new("RGBA", (20, 20), (0, 0, 0, 0)))
    assert decode(clear).min() > 250
    grey = PIL.Image.new("I;16", (20, 20), 65535)
    assert decode(encoded("JPEG2000", grey)).min() > 250


BRAND = b"\0\0\0\x18ftyp"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            BRAND + b"heic\0\0\0\0mif1heic" + bytes(100),
            "HEIC, which needs `pip install '.[heic]'` in the folder of the package",
        ),
        (BRAND + b"isom\0\0\0\0isommp42" + bytes(100), "a video (MP4), which is not read"),
        (b"\xff\x0a" + bytes(50), "JPEG XL, which is not read"),
        (b"<?xml version='1.0'?><!-- x --><svg width='9'/>", "SVG, which is not read"),
        (b"\xef\xbb\xbf <!DOCTYPE html><html><svg></svg>", "SVG, which is not read"),
        (b"<html><body>no</body>", "a web page, which is not read"),
        (b"%PDF-1.7", "PDF, which is not read"),
        (b"nothing", "UnidentifiedImageError: cannot identify image file"),
    ],
)
def test_what_is_not_read_is_named_by_its_type(data: bytes, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_codec, "heif_formats", tuple)
    with pytest.raises(ImageRejected) as error:
        decode_here(data, None, LIMITS, None)
    assert (error.value.reason, error.value.detail) == ("not_an_image", text)


def test_a_brand_of_both_is_told_apart_by_the_others() -> None:
    assert type_of(BRAND + b"mif1\0\0\0\0mif1avif") == "AVIF"
    assert type_of(BRAND + b"mif1\0\0\0\0mif1heic") == "HEIC"


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP"])
def test_the_start_of_a_picture_of_any_format_is_undecodable(kind: str) -> None:
    with pytest.raises(ImageRejected) as error:
        decode_here(encoded(kind)[:32], None, LIMITS, None)
    assert error.value.reason == "undecodable"


def test_a_jpeg_that_opencv_rejects_is_undecodable(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded("JPEG")
    monkeypatch.setattr(image_codec, "_read_jpeg", lambda *_: None)
    with pytest.raises(ImageRejected, match="broken JPEG"):
        decode_here(data, jpeg_header(data), LIMITS, None)


def test_heic_is_read_with_its_package() -> None:
    pillow_heif = pytest.importorskip("pillow_heif", reason="the extra heic is not installed")
    file = io.BytesIO()
    pillow_heif.from_pillow(PIL.Image.new("RGB", (300, 200), (200, 30, 90))).save(file)
    found = decode_reduced(file.getvalue(), LIMITS, 64)
    assert (found.pixels.shape, found.original_format) == ((200, 300, 3), "heif")
    assert abs(found.pixels.reshape(-1, 3).mean(axis=0) - (200, 30, 90)).max() < 4
    with pytest.raises(ImageRejected, match="too_many_pixels"):
        decode(file.getvalue(), ImageLimits(max_pixels=50_000))
    with pytest.raises(ImageRejected, match="undecodable: HEIC: "):
        decode(file.getvalue()[:300])


def test_a_large_picture_is_dropped_without_a_warning_of_pillow() -> None:
    program = (
        "import io, PIL.Image; from hypergrit_common.images import decode, ImageRejected\n"
        "f = io.BytesIO(); PIL.Image.new('1', (12000, 10000)).save(f, 'PNG')\n"
        "try: decode(f.getvalue())\nexcept ImageRejected as e: print(e.reason)\n"
    )
    done = subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "too_many_pixels\n"
    assert "DecompressionBomb" not in done.stderr


def chunk(kind: bytes, data: bytes, damage: int = 0) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data) ^ damage)


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_png_with_large_texts_or_profiles_is_decoded_upright(kind: bytes, is_last: bool) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    png = encoded("PNG", exif=exif)
    head = {b"zTXt": b"k\0\0", b"iTXt": b"k\0\1\0\0\0", b"iCCP": b"k\0\0"}[kind]
    place = len(png) - 12 if is_last else 33  # before the end, or behind the header
    assert decode(png[:place] + chunk(kind, head + zlib.compress(bytes(3_000_000))) + png[place:]).shape == (
        300,
        200,
        3,
    )


DAMAGED = {
    "checksum of a text": chunk(b"tEXt", b"Software\0x", damage=1),
    "checksum of a profile": chunk(b"iCCP", b"k\0\0" + zlib.compress(b"x"), damage=1 << 31),
    "profile": chunk(b"iCCP", b"k\0\0" + b"not deflated"),
    "checksum of pHYs": chunk(b"pHYs", bytes(9), damage=7),
    "short gAMA": chunk(b"gAMA", b"\0"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_png_with_damaged_metadata_keeps_its_orientation_and_transparency(damage: str) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 8
    picture = PIL.Image.new("P", (50, 20))
    picture.putpalette([9, 8, 7])
    png = encoded("PNG", picture, exif=exif, transparency=0)
    found = decode(png[:33] + DAMAGED[damage] + png[33:])
    assert found.shape == (50, 20, 3)
    assert (found == 255).all()  # transparency becomes white


@pytest.mark.parametrize("exif", [chunk(b"eXIf", b"MM\0*\0\0"), chunk(b"eXIf", b"MM\0*\0\0\0\x08\0\x01", damage=5)])
def test_a_png_with_a_damaged_orientation_is_decoded_without_one(exif: bytes) -> None:
    png = encoded("PNG")
    assert decode(png[:33] + exif + png[33:]).shape == (200, 300, 3)


@pytest.mark.parametrize(("kind", "value"), [(5, bytes(8)), (2, b"upright\0")])
def test_a_jpeg_whose_orientation_is_no_number_is_decoded_without_one(kind: int, value: bytes) -> None:
    entry = struct.pack(">HHHII", 1, 0x0112, kind, 1 if kind == 5 else len(value), 26)
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + entry + bytes(4) + value
    assert decode(encoded("JPEG", exif=exif)).shape == (200, 300, 3)


def test_a_png_with_damaged_metadata_has_the_limits_of_others() -> None:
    png = encoded("PNG", PIL.Image.new("1", (300, 3)))
    with pytest.raises(ImageRejected, match="extreme_aspect_ratio"):
        decode(png[:33] + chunk(b"tEXt", b"a", damage=1) + png[33:])
    png = encoded("PNG", PIL.Image.effect_noise((60, 50), 90))
    with pytest.raises(ImageRejected, match="undecodable"):
        decode(png[:33] + chunk(b"tEXt", b"a", damage=1) + png[33:-900])


def test_warnings_of_pillow_about_metadata_stay_off_the_terminal() -> None:
    program = (
        "import io, PIL.Image\nfrom hypergrit_common.images import decode\n"
        "f = io.BytesIO(); PIL.Image.new('P', (30, 20)).save(f, 'PNG', transparency=b'ab')\n"
        "decode(f.getvalue()); f = io.BytesIO(); PIL.Image.new('RGB', (30, 20)).save(f, 'JPEG', exif=b'Exif\\0\\0II*\\0aa')\n"
        "print(decode(f.getvalue()).shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("(20, 30, 3)\n", "")


def test_files_that_are_not_read_are_counted_by_suffix(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for kind, suffix in (("AVIF", "avif"), ("JPEG2000", "jp2"), ("TIFF", "tif")):
        (tmp_path / f"a.{suffix}").write_bytes(encoded(kind))
    for name in ("a.txt", "b.svg", "c.SVG", "d.psd", "e.heic"):
        (tmp_path / name).write_bytes(b"x")
    assert list_files(str(tmp_path))[0][0] == f"{tmp_path}/"
    assert "3 files (2 .svg, 1 .psd) of the input are not read" in caplog.text
    with caplog.at_level("INFO"):
        found = read_evaluation_set([str(tmp_path)], 0)
    assert len(found.pictures) == 1  # three times the same
    assert "4 files (2 .svg, 1 .txt, 1 .psd) are not read" in caplog.text
    assert "1 of 4 images compared by the bytes alone" in caplog.text


def test_of_several_headers_of_a_png_the_largest_counts() -> None:
    first, second = (chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 0, 0, 0, 0)) for size in ((10, 20), (7000, 7001)))
    start, pixels = b"\x89PNG\r\n\x1a\n", chunk(b"IDAT", b"IHDR" + bytes(20))
    assert image_size(start + first + pixels + second) == (10, 20)
    assert image_size(start + first + chunk(b"tEXt", b"k\0IHDR") + pixels) == (10, 20)
    for headers in (first + second, second + first, first + chunk(b"tEXt", b"k\0v") + second):
        assert image_size(start + headers + pixels) == (7000, 7001)
    assert cost_of(start + first + second + pixels, 60_000_000).predicted_s > 0.5
    assert image_size(start) == (0, 0)
