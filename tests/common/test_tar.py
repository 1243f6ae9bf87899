import io
import tarfile
from pathlib import Path

import pytest

from common.tar import TarError, iter_members
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


@pytest.mark.parametrize("data", [b"\xff\xd8\xff" * 400, b"PK" + bytes(2000), b"x" * 300])
def test_bytes_that_are_not_a_tar_raise_an_error(data: bytes) -> None:
    with pytest.raises(TarError):
        members(data)


def test_flipped_bit_in_a_header_raises_an_error(tmp_path: Path) -> None:
    data = bytearray(write_tar(tmp_path / "a.tar", [("a", {"txt": b"x"})]).read_bytes())
    data[1] ^= 1
    with pytest.raises(TarError, match="damaged"):
        members(bytes(data))


@pytest.mark.parametrize("record", [b"999 path=a\n", b"3 path=a\n", b"path", b"-5 path=a\n", b"11 path=ab"])
def test_malformed_pax_record_raises_an_error(record: bytes) -> None:
    entry = tarfile.TarInfo("a.txt")
    entry.type = tarfile.XHDTYPE
    entry.size = len(record)
    data = entry.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0") + bytes(1024)
    with pytest.raises(TarError):
        members(data)
