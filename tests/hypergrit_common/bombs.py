"""Images that cost far more to decode than their size suggests."""

import io
import struct
import zlib

import PIL.Image


def _segment(marker: int, content: bytes) -> bytes:
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(content) + 2) + content


def scan_bomb(side: int = 7740, n_scans: int = 200) -> bytes:
    """Return a progressive grey JPEG with empty refinement scans, 90 bytes each."""
    n_blocks = (-(-side // 8)) ** 2
    runs = [16384 + min(16383, n_blocks - start - 16384) for start in range(0, n_blocks, 32767)]
    bits = "".join("0" + format(run - 16384, "014b") for run in runs if run >= 16384)
    bits += "1" * (-len(bits) % 8)
    code = bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)).replace(b"\xff", b"\xff\0")
    one_code = bytes([1] + [0] * 15)
    header = _segment(0xDB, b"\0" + bytes([1] * 64))
    header += _segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + bytes([1, 0x11, 0]))
    header += _segment(0xC4, b"\x00" + one_code + b"\x00") + _segment(0xC4, b"\x10" + one_code + b"\xe0")
    first = _segment(0xDA, bytes([1, 1, 0, 1, 63, 0x0D])) + code
    refinement = _segment(0xDA, bytes([1, 1, 0, 1, 63, 0xDC])) + code
    return b"\xff\xd8" + header + first + refinement * n_scans + b"\xff\xd9"


def tile_bomb(side: int = 100, tile: int = 46_000, compression: int = 5) -> bytes:
    """Return a TIFF of 234 bytes with one tile of `tile` squared."""
    tags = [(256, side), (257, side), (258, 8), (259, compression), (262, 1), (277, 1), (322, tile), (323, tile)]
    tags += [(324, 200), (325, 30)]
    entries = b"".join(struct.pack("<HHII", tag, 4 if tag > 300 or tag < 258 else 3, 1, value) for tag, value in tags)
    return (b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)).ljust(200, b"\0") + bytes(34)


def plain(format_: str, side: int = 64) -> bytes:
    """Return a small black image."""
    file = io.BytesIO()
    PIL.Image.new("P" if format_ == "GIF" else "RGB", (side, side)).save(file, format_)
    return file.getvalue()


def fill_bomb(n_bytes: int = 20_000_000) -> bytes:
    """Return a JPEG with fill bytes in its header, which Pillow skips one by one."""
    data = plain("JPEG")
    return data[:2] + b"\xff" * n_bytes + data[2:]


def segment_bomb(n_segments: int = 5_000_000) -> bytes:
    """Return a JPEG with empty comments."""
    data = plain("JPEG")
    return data[:2] + b"\xff\xfe\0\x02" * n_segments + data[2:]


def comment_bomb(n_blocks: int = 10_000_000) -> bytes:
    """Return a GIF with a comment in blocks of one byte, which Pillow joins one by one."""
    data = plain("GIF")
    start = data.index(b",\0\0\0\0")
    return data[:start] + b"!\xfe" + b"\x01a" * n_blocks + b"\0" + data[start:]


def chunk_bomb(kind: bytes, n_chunks: int = 1_600_000) -> bytes:
    """Return a PNG with empty chunks, each read in Python; its header does not show them."""
    data = plain("PNG")
    start = data.index(b"IDAT") - 4
    chunk = struct.pack(">I", 0) + kind + struct.pack(">I", zlib.crc32(kind))
    return data[:start] + chunk * n_chunks + data[start:]


LARGE_WEBP = {
    "RGB": bytes.fromhex("524946461e000000574542505650384c110000002f3bde8e070750e42ad4a3ff8188e87f0000"),
    "RGBA": bytes.fromhex("524946461e000000574542505650384c110000002f3bde8e170750e42ad4a3648188e87f0000"),
}
"""Lossless images of 7740 x 7740 px in one colour, by mode."""


def large_png(side: int = 7740) -> bytes:
    """Return an RGBA image of 59.9 million pixels, just below the default limit."""
    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(bytes(1 + 4 * side)) for _ in range(side)) + packer.flush()
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b"")]
    checked = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(checked)
