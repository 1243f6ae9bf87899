import contextlib
import io
import os
import subprocess
import tarfile
from pathlib import Path
from random import Random

import pytest

from hypergrit_common.tar import TarError, iter_members, reader_of
from tests.patience import linear_time
from tests.trainer.data.samples import write_tar

LONG_KEY = "folder/" * 30 + "ü" * 20


def members(data: bytes) -> list[tuple[str, bytes]]:
    """Names and contents of the members."""
    found = iter_members(lambda offset, length: data[offset : offset + length], 0, len(data))
    return [(member.name, data[member.data_offset : member.data_offset + member.size]) for member in found]


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("key", ["000001", "a" * 120, LONG_KEY])
def test_members_equal_those_of_tarfile(tmp_path: Path, tar_format: int, key: str) -> None:
    samples = [(key, {"jpg": b"x" * 700, "txt": b""}), ("next", {"json": b"{}"})]
    path = write_tar(tmp_path / "a.tar", samples, tar_format)
    with tarfile.open(path) as tar:
        theirs = [(entry.name, tar.extractfile(entry).read()) for entry in tar]  # type: ignore[union-attr]
    assert members(path.read_bytes()) == theirs


def test_ustar_prefix_is_part_of_the_name(tmp_path: Path) -> None:
    key = "folder/" * 20 + "key"
    path = write_tar(tmp_path / "a.tar", [(key, {"txt": b"1"})], tarfile.USTAR_FORMAT)
    assert members(path.read_bytes()) == [(f"{key}.txt", b"1")]


def test_folders_and_links_are_skipped() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE):
            entry = tarfile.TarInfo("a.jpg")
            entry.type = kind
            tar.addfile(entry)
    assert members(file.getvalue()) == []


def test_truncated_member_raises_an_error_with_its_name(tmp_path: Path) -> None:
    data = write_tar(tmp_path / "a.tar", [("a", {"txt": b"x" * 2000})]).read_bytes()
    with pytest.raises(TarError, match=r"truncated inside a\.txt"):
        members(data[:1500])


def header(name: str = "a.txt", kind: bytes = b"0", size: bytes = b"00000000000\0") -> bytes:
    """A header with any bytes in its size field, and a correct checksum."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    block[124:136], block[156:157], block[148:156] = size, kind, b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def extension(kind: bytes, content: bytes) -> bytes:
    return header("PaxHeader", kind, b"%011o\0" % len(content)) + content.ljust(-(-len(content) // 512) * 512, b"\0")


def pax(key: str, value: str) -> bytes:
    record = f" {key}={value}\n".encode()
    length = len(record) + 2 if len(record) < 98 else len(record) + 3
    return extension(b"x", str(length).encode() + record)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8\xff" * 400,
        b"PK" + bytes(2000),
        b"x" * 300,
        b"b" + header()[1:],  # its checksum is another one
        *(
            extension(b"x", record)
            for record in (b"999 path=a\n", b"3 path=a\n", b"path", b"-5 path=a\n", b"11 path=ab")
        ),
        header(size=b"-0000001000\0"),
        header(size=b"0000001_000\0"),
        header(size=b"\xff" * 12),
        header(size=b"\x80" + b"\xff" * 11),
        header(size=b"\x80" + b"\0" * 6 + b"\x01\0\0\0\0"),
        header(size=b"77777777777\0"),
        header(kind=b"S"),
        pax("size", "\N{SUPERSCRIPT TWO}") + header(),
        pax("size", "-512") + header(),
        pax("size", "9" * 19) + header(),
        pax("size", "9" * 5000) + header(),
        pax("GNU.sparse.major", "1") + header(),
        pax("path", "b.txt") * 3000 + header(),
        extension(b"L", b"b.txt") * 3000 + header(),
        extension(b"x", b"5 a=\n" * 100_000) + header(),
        extension(b"x", bytes(1_000_000)) + header(),
        header(kind=b"x", size=b"77777777777\0"),
    ],
)
def test_hostile_header_or_another_file_raises_an_error_at_once(data: bytes) -> None:
    with linear_time(), pytest.raises(TarError):
        members(data + bytes(1024))


def test_a_header_that_points_backwards_does_not_loop() -> None:
    assert members(header("a.txt") + header("b.txt", size=b"00000000001\0") + bytes(1536)) == [
        ("a.txt", b""),
        ("b.txt", b"\0"),
    ]


def test_link_with_a_size_has_no_content() -> None:
    link = header("l.txt", kind=b"1", size=b"%011o\0" % 4096)
    assert members(link + header("a.txt") + bytes(1024)) == [("a.txt", b"")]


@pytest.mark.parametrize("spelling", [b"%07o\0", b"  %o\0", b"%o \0"])
def test_a_checksum_may_be_written_in_other_ways(spelling: bytes) -> None:
    data = bytearray(header("a.txt", b"0", b"%011o\0" % 3) + b"abc".ljust(512, b"\0"))
    data[148:156] = (spelling % int(data[148:154], 8)).ljust(8, b"\0")
    assert members(bytes(data) + bytes(1024)) == [("a.txt", b"abc")]


def test_long_link_before_or_after_a_long_name_is_ignored() -> None:
    name, link = extension(b"L", b"n" * 200 + b".txt"), extension(b"K", b"k" * 200)
    assert [found[0] for order in (name + link, link + name) for found in members(order + header() + bytes(1024))] == [
        "n" * 200 + ".txt"
    ] * 2


def test_random_headers_are_members_or_errors_in_bounded_time() -> None:
    random = Random(0)
    with linear_time():
        for _ in range(3000):
            data = bytearray(pax("path", "b.txt") + header() + bytes(1024))
            for _ in range(random.randrange(1, 6)):
                data[random.randrange(1536)] = random.randrange(256)
            with contextlib.suppress(TarError):
                list(
                    iter_members(lambda start, n, data=data: bytes(data[start : start + n]), 0, len(data), verify=False)
                )


@pytest.mark.parametrize("first", [512 * 7, 512 * 22])
def test_a_hole_is_no_end_of_the_archive(tmp_path: Path, first: int) -> None:
    """Zeros in place of a header, with other members behind them."""
    path = write_tar(tmp_path / "a.tar", [(f"{i:03d}", {"txt": bytes([65 + i]) * 512 * 3}) for i in range(20)])
    whole = path.read_bytes()
    assert len(members(whole)) == 20
    start = whole.index(b"0" * 2 + str(first // 512 // 4 + 1).encode() + b".txt")
    last = whole.rindex(b"019.txt")
    for hole in (512, last - start):
        data = whole[:start] + bytes(hole) + whole[start + hole :]
        with pytest.raises(TarError, match=f"zeros at byte {start} of {len(whole)}"):
            members(data)


@pytest.mark.parametrize("blocks", [2, 20])
def test_tars_that_cat_has_joined_are_read_as_one(tmp_path: Path, blocks: int) -> None:
    """Two blocks end the tars of Go and of this package, records of 20 those of tar and Python."""
    parts, names = b"", list[str]()
    for i in range(3):
        names += [f"{i}{j}.txt" for j in range(i + 1)]
        part = write_tar(tmp_path / "a.tar", [(f"{i}{j}", {"txt": bytes(1500)}) for j in range(i + 1)]).read_bytes()
        end = len(part.rstrip(b"\0")) // 2048 * 2048 + 2048
        parts += part if blocks == 20 else part[:end] + bytes(1024)
    assert [name for name, _ in members(parts)] == names
    (tmp_path / "a.tar").write_bytes(parts)
    with (tmp_path / "a.tar").open("rb") as file:
        found = iter_members(reader_of(file), 0, len(parts), needs_mark=True)
        assert [member.name for member in found] == names
    with pytest.raises(TarError, match=r"truncated inside 22\.txt"):
        members(parts[: parts.rindex(b"22.txt") + 1024])


@pytest.mark.parametrize(("first", "last"), [(1, 2), (1, 3), (6, 9), (2, 12)])
def test_a_hole_that_ends_before_a_header_is_no_end(tmp_path: Path, first: int, last: int) -> None:
    whole = write_tar(tmp_path / "a.tar", [(f"{i:02d}", {"txt": b"x" * 1500}) for i in range(20)]).read_bytes()
    hole = slice(first * 2048, last * 2048)
    with pytest.raises(TarError, match=f"zeros at byte {hole.start}"):
        members(whole[: hole.start] + bytes(hole.stop - hole.start) + whole[hole.stop :])


@pytest.mark.parametrize("options", [("-b", "1"), ("-b", "64"), ("-b", "2048"), ("--format=pax", "-b", "100")])
def test_padding_of_any_length_is_accepted(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "a.txt").write_text("x")
    subprocess.run(["tar", "-cf", "a.tar", *options, "a.txt"], cwd=tmp_path, check=True)
    data = (tmp_path / "a.tar").read_bytes()
    assert members(data) == members(data + bytes(3_000_000)) == [("a.txt", b"x")]
    with pytest.raises(TarError, match="the tar has a hole"):
        members(data + bytes(3_000_000) + b"x")


def test_a_sparse_end_is_not_read(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("a", {"txt": b"x"})])
    os.truncate(path, 1 << 40)
    with linear_time():
        with path.open("rb") as file:
            assert [member.name for member in iter_members(reader_of(file), 0, 1 << 40, needs_mark=True)] == ["a.txt"]
        os.truncate(path, (1 << 40) + 512)
        with path.open("r+b") as file:
            file.seek(1 << 39)
            file.write(b"x")
        with path.open("rb") as file, pytest.raises(TarError, match="the tar has a hole"):
            list(iter_members(reader_of(file), 0, (1 << 40) + 512))


def test_a_short_end_of_the_archive_is_accepted(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "a.tar", [("a", {"txt": b"x"})]).read_bytes()
    assert members(whole[:1536]) == members(whole[:2048]) == members(whole) == [("a.txt", b"x")]
