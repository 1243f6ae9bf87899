import io
import tarfile
from pathlib import Path

import pytest

from tests.trainer.data.samples import write_tar
from trainer.data.tar import TarError, walk

LONG = "folder/" * 30 + "ü" * 20


def members(data: bytes) -> list[tuple[str, bytes]]:
    found = walk(lambda offset, length: data[offset : offset + length], 0, len(data))
    return [(member.name, data[member.start : member.start + member.size]) for member in found]


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("key", ["000001", "a" * 120, LONG])
def test_members_are_those_that_tarfile_finds(tmp_path: Path, tar_format: int, key: str) -> None:
    samples = [(key, {"jpg": b"x" * 700, "txt": b""}), ("next", {"json": b"{}"})]
    path = write_tar(tmp_path / "a.tar", samples, tar_format)
    with tarfile.open(path) as tar:
        theirs = [(entry.name, tar.extractfile(entry).read()) for entry in tar]  # type: ignore[union-attr]
    assert members(path.read_bytes()) == theirs


def test_a_ustar_prefix_belongs_to_the_name(tmp_path: Path) -> None:
    key = "folder/" * 20 + "key"
    path = write_tar(tmp_path / "a.tar", [(key, {"txt": b"1"})], tarfile.USTAR_FORMAT)
    assert members(path.read_bytes()) == [(f"{key}.txt", b"1")]


def test_folders_and_links_are_no_members() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE):
            entry = tarfile.TarInfo("a.jpg")
            entry.type = kind
            tar.addfile(entry)
    assert members(file.getvalue()) == []


def test_a_cut_within_a_member_is_an_error(tmp_path: Path) -> None:
    data = write_tar(tmp_path / "a.tar", [("a", {"txt": b"x" * 2000})]).read_bytes()
    with pytest.raises(TarError, match=r"cut off within a\.txt"):
        members(data[:1500])


@pytest.mark.parametrize("data", [b"\xff\xd8\xff" * 400, b"PK" + bytes(2000), b"x" * 300])
def test_what_is_no_tar_is_an_error(data: bytes) -> None:
    with pytest.raises(TarError):
        members(data)


def test_a_flipped_bit_in_a_header_is_an_error(tmp_path: Path) -> None:
    data = bytearray(write_tar(tmp_path / "a.tar", [("a", {"txt": b"x"})]).read_bytes())
    data[1] ^= 1
    with pytest.raises(TarError, match="damaged"):
        members(bytes(data))


@pytest.mark.parametrize("record", [b"999 path=a\n", b"3 path=a\n", b"path", b"-5 path=a\n", b"11 path=ab"])
def test_a_hostile_pax_record_is_an_error(record: bytes) -> None:
    entry = tarfile.TarInfo("a.txt")
    entry.type = tarfile.XHDTYPE
    entry.size = len(record)
    data = entry.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0") + bytes(1024)
    with pytest.raises(TarError):
        members(data)
