"""The tar writer, checked with tarfile and GNU tar."""

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.output.write.tar import MAX_MEMBER_BYTES, TarWriter, header

NAMES = st.text(st.characters(exclude_characters="\0/", exclude_categories=("Cs",)), min_size=1, max_size=150)


def archive(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with TarWriter(out) as tar:
        for name, data in members.items():
            tar.add(name, data)
    return out.getvalue()


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES.filter(lambda name: name not in (".", "..")), st.binary(max_size=1100), max_size=6))
def test_tarfile_reads_any_names_and_contents(members: dict[str, bytes]) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive(members))) as tar:
        assert {item.name: tar.extractfile(item).read() for item in tar} == members


@pytest.mark.parametrize("length", [*range(88, 105), 990, 991, 992, 993, 994])
def test_names_with_lengths_around_the_limits_of_the_format_are_read_correctly(length: int) -> None:
    name = "k" * length
    with tarfile.open(fileobj=io.BytesIO(archive({name: b"x"}))) as tar:
        assert tar.getnames() == [name]


def test_gnu_tar_extracts_the_archive(tmp_path: Path) -> None:
    if shutil.which("tar") is None:
        pytest.skip("no tar command")
    members = {"0.jpg": b"\xff" * 700, "0.txt": "café 🐈".encode(), "é" * 80 + ".txt": b"", "k" * 130: b"{}"}
    (tmp_path / "a.tar").write_bytes(archive(members))
    subprocess.run(["tar", "-xf", "a.tar"], cwd=tmp_path, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    assert {name: (tmp_path / name).read_bytes() for name in members} == members


def test_header_equals_that_of_tarfile() -> None:
    info = tarfile.TarInfo("000000000001.parent000.jpg")
    info.size = 12345
    expected = info.tobuf(tarfile.USTAR_FORMAT)
    assert header(b"000000000001.parent000.jpg", 12345) == expected


def test_archive_larger_than_the_buffer_is_complete_and_ends_with_two_empty_blocks() -> None:
    members = {f"{i}.bin": bytes([i % 256]) * 100_000 for i in range(30)}
    data = archive(members)
    assert data.endswith(bytes(1024))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert all(tar.extractfile(item).read() == members[item.name] for item in tar)


def test_member_that_is_too_large_for_the_format_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return MAX_MEMBER_BYTES + 1

    with pytest.raises(ValueError, match=f"the maximum of the format is {MAX_MEMBER_BYTES}"):
        TarWriter(io.BytesIO()).add("a.bin", Huge())
