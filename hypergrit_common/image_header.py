"""Predict the cost of decoding an image from its header, and refuse images that cost far more than their size explains.

The header is read in linear time with a small constant, whatever it claims. The limits depend on the bytes alone, so
the same image is refused on every machine:

    scans     a progressive JPEG is decoded once for each scan: `MAX_PIXEL_SCANS` bounds pixels times scans (16 scans of
              60 million pixels; encoders write 10 to 20), `MAX_SCANS` the scans of small images
    headers   `MAX_FILL_BYTES` fill bytes (0xFF) and `MAX_SEGMENTS` segments before the first scan of a JPEG,
              `MAX_BLOCKS` blocks before the first frame of a GIF
    tiles     the tile of a TIFF has at most `TILE_FACTOR` times the pixels of its image, or `MIN_TILE_PIXELS`

`Cost` limits the CPU time and the memory of everything that no header shows.
"""

import re
import struct
from typing import Final, NamedTuple

MAX_PIXEL_SCANS: Final = 960_000_000
SCANS_AT_LIMIT: Final = 16
MAX_SCANS: Final = 1000
MAX_FILL_BYTES: Final = 4096
MAX_SEGMENTS: Final = 1024
MAX_BLOCKS: Final = 10_000
TILE_FACTOR: Final = 4
MIN_TILE_PIXELS: Final = 16_000_000

JPEG_START: Final = b"\xff\xd8\xff"
START_OF_FRAME: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
PROGRESSIVE: Final = (0xC2, 0xC6, 0xCA, 0xCE)
SIMPLE_FRAMES: Final = (0xC0, 0xC1, 0xC2)
"""Baseline, extended and progressive with Huffman codes; other kinds are rare and slow."""
START_OF_SCAN: Final = 0xDA
END_OF_IMAGE: Final = 0xD9
WITHOUT_LENGTH: Final = (0x01, *range(0xD0, 0xD8))
APP1: Final = 0xE1
FILL: Final = re.compile(rb"\xff+")
MARKER: Final = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd7]")
"""A marker with a length within or after entropy-coded data: not TEM and not a restart marker."""

BMP_RUN_LENGTH: Final = (1, 2)
TIFF_ORDER: Final = {b"II*\0": "<", b"MM\0*": ">"}
TIFF_NUMBERS: Final = {1: "B", 3: "H", 4: "I"}
"""Type of a TIFF entry -> its code in `struct`."""
TIFF_WIDTH, TIFF_HEIGHT, TIFF_TILE_WIDTH, TIFF_TILE_HEIGHT = 256, 257, 322, 323


MAGIC: Final = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")
"""First bytes of the usual images, but for BMP, whose two letters are too few."""
READ: Final = ("AVIF", "HEIC", "JPEG 2000")
"""Types of `type_of` that are decoded in a child process; HEIC needs a package."""
TYPES: Final = (
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\xff\x0a", "JPEG XL"),
    (b"8BPS", "a Photoshop document"),
    (b"\0\0\1\0", "an icon (ICO)"),
    (b"%PDF", "PDF"),
    (b"\x1aE\xdf\xa3", "a video (WebM)"),
    (b"version https://git-lfs.github.com/", "a pointer of git LFS, not the file: run git lfs pull"),
    (b"# xet version ", "a pointer of Xet, not the file: download it with huggingface_hub, or run git xet"),
    (b"PAR1\x15", "a parquet file (.parquet)"),
    (b"PK\3\4", "a zip file (.zip)"),
    (b"\x1f\x8b", "gzip data (.gz)"),
    (b"BZh91AY&SY", "bzip2 data (.bz2)"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data (.zst)"),
    (b"\xfd7zXZ\0", "xz data (.xz)"),
)
BRANDS: Final = (
    ((b"avif", b"avis"), "AVIF"),
    ((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"), "HEIC"),
)
"""Brands of the ISO media format; those of AVIF come first, since mif1 is a brand of both."""
SVG: Final = re.compile(rb"<(?:svg|!DOCTYPE svg)[\s>]", re.IGNORECASE)
HTML: Final = re.compile(rb"\s*(?:<\?xml[^<]{0,200})?<(?:!DOCTYPE html|html|head|body)[\s>]", re.IGNORECASE)
JP2_SIZE: Final = re.compile(rb"\xff\x4f\xff\x51.{4}(.{4})(.{4})(.{4})(.{4})", re.DOTALL)
HEADER_BYTES: Final = 1 << 16
SLOW_S: Final = 400e-9
"""CPU seconds for a pixel of `READ`: several times those of JPEG 2000, the slowest."""
SLOW_BYTES: Final = 32
"""Bytes for a pixel of `READ`; OpenJPEG holds four for each of up to four channels, twice."""


def type_of(data: bytes) -> str:
    """Return what an image or a file is by its first kilobyte, "" for the usual images and unknown data."""
    if data[4:8] == b"ftyp":
        end = min(int.from_bytes(data[:4], "big"), 256)
        found = {data[i : i + 4] for i in range(8, end, 4)}
        return next((name for brands, name in BRANDS if not found.isdisjoint(brands)), "a video (MP4)")
    start = data[:1024].removeprefix(b"\xef\xbb\xbf")
    if start.lstrip()[:1] == b"<":
        return "SVG" if SVG.search(start) else "a web page" if HTML.match(start) else ""
    if data[257:262] == b"ustar":
        return "a tar (.tar)"
    return next((name for magic, name in TYPES if data.startswith(magic)), "")


def is_picture(data: bytes) -> bool:
    """Return True for bytes that begin like an image of a format that is read."""
    return data.startswith(MAGIC) or (data[:2] == b"BM" and data[6:10] == bytes(4)) or type_of(data) in READ


def _read_pixels(data: bytes) -> int:
    """The pixels of an image of `READ` by its header, of the largest part if it has several; 0 if it names none."""
    if found := JP2_SIZE.search(data, 0, HEADER_BYTES):
        right, bottom, left, top = (int.from_bytes(part, "big") for part in found.groups())
        return max(right - left, 0) * max(bottom - top, 0)
    sizes = [data[match.end() + 4 : match.end() + 12] for match in re.finditer(b"ispe", data[:HEADER_BYTES])]
    return max((int.from_bytes(size[:4], "big") * int.from_bytes(size[4:], "big") for size in sizes), default=0)


class CostlyImageError(Exception):
    """Decoding the image would cost more than its size explains; the message names the measure."""


class Cost(NamedTuple):
    """The predicted seconds of decoding an image, and the limits on its decoding in CPU seconds and bytes of memory."""

    predicted_s: float
    max_s: float
    max_bytes: int


class JpegHeader(NamedTuple):
    """The properties of a JPEG by the segments before its first scan."""

    width: int
    height: int
    n_channels: int
    frame: int  # marker of the frame: baseline, progressive, ...
    scan_start: int  # offset of the first start-of-scan marker
    is_single_scan: bool
    has_exif: bool
    has_app1: bool  # Exif or XMP, which may hold an orientation


def cost_of(data: bytes, max_pixels: int) -> Cost:
    """Predict the cost of decoding `data` with up to `max_pixels` pixels, like `cost_by_header`."""
    return cost_by_header(data, jpeg_header(data), max_pixels)


def jpeg_header(data: bytes) -> JpegHeader | None:
    """Return the header of a JPEG, None if it is damaged and for other data. Raises CostlyImageError."""
    return read_jpeg_header(data) if data.startswith(JPEG_START) else None


def cost_by_header(data: bytes, header: JpegHeader | None, max_pixels: int) -> Cost:
    """Predict the cost of decoding `data` with up to `max_pixels` pixels; `header` is its `jpeg_header`.

    The prediction is infinite for rare formats and for headers that cannot be read. Raises CostlyImageError for an
    image that is not worth trying.
    """
    if data.startswith(JPEG_START):
        return _limits(float("inf"), 0) if header is None else jpeg_cost(data, header, max_pixels)
    if data.startswith(b"BM") and int.from_bytes(data[30:34], "little") in BMP_RUN_LENGTH:
        return _limits(float("inf"), 0)  # Pillow decodes run lengths in Python
    if type_of(data) in READ:
        pixels = _decoded_pixels(_read_pixels(data), max_pixels)
        return Cost(float("inf"), 1.0 + SLOW_S * pixels, 256_000_000 + SLOW_BYTES * pixels)
    if data.startswith((b"II", b"MM")):
        return _limits(float("inf"), min(_tiff_pixels(data), max_pixels))
    width, height = image_size(data)
    pixels = _decoded_pixels(width * height, max_pixels)
    # Chunks and blocks are read in Python, so the bytes count even if there are few pixels.
    return _limits(20e-9 * pixels + 30e-9 * len(data), pixels)


def _decoded_pixels(pixels: int, max_pixels: int) -> int:
    """The number of pixels to decode: 0 if there are more than the limit, because the image is then refused."""
    return pixels if pixels <= max_pixels else 0


def _limits(predicted_s: float, pixels: int) -> Cost:
    return Cost(predicted_s, 1.0 + 50e-9 * pixels, 256_000_000 + 9 * pixels)


def jpeg_cost(data: bytes, header: JpegHeader, max_pixels: int) -> Cost:
    """Predict the cost of decoding a JPEG with this header. Raises CostlyImageError like `cost_of`."""
    pixels = _decoded_pixels(header.width * header.height, max_pixels)
    scans = 1 if header.is_single_scan else count_scans(data, header.scan_start)
    if scans > MAX_SCANS or pixels * scans > max(MAX_PIXEL_SCANS, SCANS_AT_LIMIT * max_pixels):
        raise CostlyImageError(f"{header.width} x {header.height} px in {scans} scans")
    is_simple = header.frame in SIMPLE_FRAMES
    predicted_s = (5 + scans) * 1e-9 * pixels + 10e-9 * len(data) if is_simple else float("inf")
    return _limits(predicted_s, pixels)


def read_jpeg_header(data: bytes) -> JpegHeader | None:
    """Read the segments up to the first scan; return None if they are damaged.

    Raises CostlyImageError for too many segments or fill bytes, which decoders read one by one.
    """
    offset, end, n_fill = 2, len(data), 0
    width = height = n_channels = frame = 0
    has_exif = has_app1 = False
    for _ in range(MAX_SEGMENTS):
        if offset + 4 > end or data[offset] != 0xFF:
            return None
        marker = data[offset + 1]
        if marker == 0xFF:
            match = FILL.match(data, offset)
            assert match is not None, "two fill bytes were read"
            n_fill += match.end() - offset - 1
            if n_fill > MAX_FILL_BYTES:
                raise CostlyImageError(f"{n_fill} fill bytes in the header, more than {MAX_FILL_BYTES}")
            offset = match.end() - 1
            continue
        if marker in WITHOUT_LENGTH:
            offset += 2
            continue
        if marker == END_OF_IMAGE:
            return None
        if marker in START_OF_FRAME and offset + 10 <= end:
            height = int.from_bytes(data[offset + 5 : offset + 7], "big")
            width = int.from_bytes(data[offset + 7 : offset + 9], "big")
            n_channels, frame = data[offset + 9], marker
        elif marker == START_OF_SCAN:
            if not (width and height):
                return None
            is_single = frame not in PROGRESSIVE and data[offset + 4 : offset + 5] == bytes([n_channels])
            return JpegHeader(width, height, n_channels, frame, offset, is_single, has_exif, has_app1)
        elif marker == APP1:
            has_app1 = True
            has_exif |= data[offset + 4 : offset + 8] == b"Exif"
        offset += 2 + int.from_bytes(data[offset + 2 : offset + 4], "big")
    raise CostlyImageError(f"more than {MAX_SEGMENTS} segments before the first scan")


def count_scans(data: bytes, start: int) -> int:
    """Count the scans of a JPEG from its first start-of-scan marker at `start`, or a number above `MAX_SCANS`."""
    bound = data.count(b"\xff\xda", start)
    if bound <= SCANS_AT_LIMIT:  # data after the end of the image may contain more by chance
        return bound
    scans, offset = 0, start
    for _ in range(4 * MAX_SCANS):
        match = MARKER.search(data, offset)
        if match is None or data[match.end() - 1] == END_OF_IMAGE:
            return scans
        scans += data[match.end() - 1] == START_OF_SCAN
        offset = match.end() + int.from_bytes(data[match.end() : match.end() + 2], "big")
    return MAX_SCANS + 1


def image_size(data: bytes) -> tuple[int, int]:
    """Read (width, height) of a PNG, GIF, WebP or BMP, (0, 0) of other data.

    Raises CostlyImageError for a GIF with too many blocks.
    """
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png_size(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return _gif_size(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp_size(data)
    if data.startswith(b"BM"):
        return _bmp_size(data)
    return 0, 0


def _little(data: bytes, start: int, end: int) -> int:
    return int.from_bytes(data[start:end], "little")


def _png_size(data: bytes) -> tuple[int, int]:
    """The largest size that a header names; of several headers before the pixels, which are an error, Pillow uses the last."""
    places, start, last = [12], 8, data.rfind(b"IHDR")
    while start + 8 < last and data[start + 4 : start + 8] != b"IDAT":
        start += 12 + int.from_bytes(data[start : start + 4], "big")
        places += [start + 4] if data[start + 4 : start + 8] == b"IHDR" else []
    sizes = ((int.from_bytes(data[i + 4 : i + 8], "big"), int.from_bytes(data[i + 8 : i + 12], "big")) for i in places)
    return max(sizes, key=lambda size: size[0] * size[1])


def _gif_size(data: bytes) -> tuple[int, int]:
    """The size of the screen or of the first frame, whichever is larger."""
    offset = 13 + (3 << ((data[10] & 7) + 1) if data[10:11] and data[10] & 0x80 else 0)
    in_block = False
    for _ in range(MAX_BLOCKS):
        if offset >= len(data):
            return 0, 0
        if in_block:
            in_block = data[offset] > 0
            offset += 1 + data[offset]
        elif data[offset] == ord("!"):
            in_block = True
            offset += 2
        elif data[offset] == ord(","):
            x, y, width, height = (_little(data, offset + i, offset + i + 2) for i in (1, 3, 5, 7))
            return max(_little(data, 6, 8), x + width), max(_little(data, 8, 10), y + height)
        else:
            offset += 1
    raise CostlyImageError(f"more than {MAX_BLOCKS} blocks before the first frame")


def _webp_size(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8 ":
            return _little(data, 26, 28) & 0x3FFF, _little(data, 28, 30) & 0x3FFF
        case b"VP8L":
            bits = _little(data, 21, 25)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return _little(data, 24, 27) + 1, _little(data, 27, 30) + 1
        case _:
            return 0, 0


def _bmp_size(data: bytes) -> tuple[int, int]:
    if _little(data, 14, 18) == 12:
        return _little(data, 18, 20), _little(data, 20, 22)
    return tuple(abs(int.from_bytes(data[i : i + 4], "little", signed=True)) for i in (18, 22))  # type: ignore[return-value]


def _tiff_pixels(data: bytes) -> int:
    """The pixels of the first image of a TIFF, 0 if they cannot be read. Raises CostlyImageError for a huge tile."""
    order = TIFF_ORDER.get(data[:4])
    if order is None or len(data) < 10:
        return 0
    found = dict.fromkeys((TIFF_WIDTH, TIFF_HEIGHT, TIFF_TILE_WIDTH, TIFF_TILE_HEIGHT), 0)
    start = struct.unpack_from(order + "I", data, 4)[0]
    n_entries = struct.unpack_from(order + "H", data, start)[0] if start + 2 <= len(data) else 0
    for offset in range(start + 2, min(start + 2 + 12 * n_entries, len(data) - 11), 12):
        tag, kind = struct.unpack_from(order + "HH", data, offset)
        if tag in found and kind in TIFF_NUMBERS:
            found[tag] = max(found[tag], struct.unpack_from(order + TIFF_NUMBERS[kind], data, offset + 8)[0])
    width, height, tile_width, tile_height = found.values()
    pixels = width * height
    if tile_width * tile_height > max(TILE_FACTOR * pixels, MIN_TILE_PIXELS):
        raise CostlyImageError(f"tiles of {tile_width} x {tile_height} px in an image of {width} x {height} px")
    return max(pixels, tile_width * tile_height)


def is_still_webp(data: bytes) -> bool:
    """True for a WebP of one frame without Exif data; OpenCV decodes it with a third of Pillow's memory."""
    kind, flags = data[12:16], data[20:21] or b"\0"
    if not data.startswith(b"RIFF") or data[8:12] != b"WEBP":
        return False
    return kind in (b"VP8 ", b"VP8L") or (kind == b"VP8X" and not flags[0] & 0b1010)


def has_webp_alpha(data: bytes) -> bool:
    """True for a still WebP with an alpha channel."""
    kind = data[12:16]
    return (kind == b"VP8X" and bool(data[20] & 0b10000)) or (kind == b"VP8L" and bool(data[24] & 0b10000))
