"""Compressed and transcoded files: equal rows, damage, hostile data, memory."""

import bz2
import gzip
import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from hypergrit_common.errors import UserError
from pipeline.read.config import ReadConfig
from pipeline.read.listing import format_of, list_files
from pipeline.read.plan import cut_files
from pipeline.read.streams import COMPRESSIONS, input_errors, open_stream
from tests.memory import memory_below
from tests.pipeline.read.test_stage import ROWS, read_all, write_tar

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
}
LINES = [json.dumps(row).encode() + b"\n" for row in ROWS]
MB = 1 << 20


def test_suffixes_name_format_and_compression() -> None:
    assert COMPRESS.keys() == COMPRESSIONS.keys()
    assert {format_of(f"a.tar{suffix}") for suffix in COMPRESS} == {"tar"} == {format_of("A.TGZ")}
    assert format_of("a.json.bz2") == "json"
    assert format_of("a.parquet.zst") is None
    assert format_of("a.gz") is None


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_lines_are_read_at_any_shard_size(tmp_path: Path, suffix: str) -> None:
    data = COMPRESS[suffix](b"".join(LINES[:4])) + COMPRESS[suffix](b"".join(LINES[4:]))  # as of parallel compressors
    (tmp_path / f"a.jsonl{suffix}").write_bytes(data)
    for rows_per_shard in (1, 3, 100):
        assert [row["url"] for row in read_all(tmp_path, rows_per_shard)] == [row["url"] for row in ROWS]


@pytest.mark.parametrize(
    "suffix", [".gz", *(pytest.param(suffix, marks=pytest.mark.rest) for suffix in [*COMPRESS][1:])]
)
@pytest.mark.parametrize("how", ["truncated", "followed by something else"])
def test_lines_before_a_damage_are_read(tmp_path: Path, suffix: str, how: str) -> None:
    rng = random.Random(0)
    lines = [json.dumps({"url": f"http://a/{i}", "caption": str(rng.random())}).encode() + b"\n" for i in range(60_000)]
    whole = COMPRESS[suffix](b"".join(lines))
    damaged = whole[: len(whole) * 3 // 4] if how == "truncated" else whole + b"something else"
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(damaged)
    (file,) = cut_files(list_files(str(path)), 10**6, None, ReadConfig())
    assert file.damage
    n = file.cuts[-1].row
    rows = read_all(path, 4000)
    assert [row["url"] for row in rows] == [f"http://a/{i}" for i in range(n)]
    # bzip2 has blocks of 900 KB
    assert n > 20_000 if how == "truncated" else n == 60_000


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_file_that_is_not_compressed_is_damaged(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a.jsonl{suffix}").write_bytes(b"".join(LINES))
    with pytest.raises(UserError, match=r"a\.jsonl.*skip_damaged"):
        read_all(tmp_path)


def pairs(n: int) -> dict[str, bytes]:
    rng = random.Random(1)
    members = {}
    for i in range(n):
        members |= {f"{i:03}.{kind}": rng.randbytes(3000) for kind in ("png", "jpg", "npy")}
        members[f"{i:03}.json"] = json.dumps({"caption": f"a cat {i}"}).encode()
    return members


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_tar_has_the_rows_of_the_tar(tmp_path: Path, suffix: str) -> None:
    plain = write_tar(tmp_path / "plain.tar", pairs(9))
    path = tmp_path / f"a.tar{suffix}"
    path.write_bytes(COMPRESS[suffix](plain.read_bytes()))
    expected = [(row["image"], row["caption_original"]) for row in read_all(plain)]
    for rows_per_shard in (2, 100):
        rows = read_all(path, rows_per_shard)
        assert [(row["image"], row["caption_original"]) for row in rows] == expected


def test_a_compressed_tar_is_decompressed_once_for_each_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(write_tar(tmp_path / "b.tar", pairs(30)).read_bytes()))
    (tmp_path / "b.tar").unlink()
    n_starts = 0

    def start(file: io.BufferedIOBase) -> gzip.GzipFile:
        nonlocal n_starts
        n_starts += 1
        return gzip.GzipFile(fileobj=file)  # type: ignore[arg-type]

    monkeypatch.setitem(COMPRESSIONS, ".gz", start)
    assert len(read_all(path, 10)) == 30
    assert n_starts <= 2 + 3  # two for planning, which returns to the start, and one for each shard


@pytest.mark.parametrize("n_bytes", range(500, 60_000, 4999))
def test_of_a_truncated_compressed_tar_complete_samples_are_read(tmp_path: Path, n_bytes: int) -> None:
    whole = write_tar(tmp_path / "whole.tar", pairs(5)).read_bytes()
    (tmp_path / "whole.tar").unlink()
    for name, data in (
        ("a.tar.gz", gzip.compress(whole[:n_bytes])),
        ("b.tar.gz", gzip.compress(whole)[: n_bytes // 2]),
    ):
        (tmp_path / name).write_bytes(data)
        (file,) = cut_files(list_files(str(tmp_path / name)), 2, None, ReadConfig(skip_damaged=True))
        assert file.damage
        n = file.cuts[-1].row
        if n:
            rows = read_all(tmp_path / name, 2)
            assert [row["caption_original"] for row in rows] == [f"a cat {i}" for i in range(n)]
            assert all(len(row["image"]) == 3000 for row in rows)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_bomb_is_never_in_memory(tmp_path: Path, suffix: str) -> None:
    header = b'{"url": "http://a", "caption": "x"}\n{"url": "'
    (tmp_path / f"a.jsonl{suffix}").write_bytes(COMPRESS[suffix](header + b"y" * (60 * MB)))
    with memory_below(20 * MB):
        rows = read_all(tmp_path)
    assert [row["reason"] for row in rows] == [None, "bad_row"]


def test_a_member_of_a_compressed_tar_above_the_limit_is_not_in_memory(tmp_path: Path) -> None:
    plain = write_tar(tmp_path / "a.tar", {"a.jpg": bytes(40 * MB), "b.jpg": bytes(100)})
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(plain.read_bytes(), 1))
    with memory_below(20 * MB):
        rows = read_all(tmp_path / "a.tar.gz", max_image_bytes=MB)
    assert [row["reason"] for row in rows] == ["bad_row", None]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "shift_jis", "utf-8-sig", "gb18030"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json", "a.csv.gz"])
def test_text_in_other_encodings_is_read(tmp_path: Path, encoding: str, name: str) -> None:
    text = "größe" if encoding in ("latin-1", "cp1252") else "犬 表 dog"
    rows = [{"url": f"http://a/{i}", "caption": f"{text} {i}"} for i in range(5)]
    if name == "a.jsonl":
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    elif name == "a.json":
        content = json.dumps(rows, ensure_ascii=False)
    else:
        content = "url,caption\n" + "".join(f"{row['url']},{row['caption']}\n" for row in rows)
    data = content.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    found = read_all(tmp_path, 2, encoding=encoding)
    assert [row["caption_original"] for row in found] == [row["caption"] for row in rows]


def test_a_caption_in_a_tar_has_the_encoding_too(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"0.jpg": b"image", "0.txt": "größe".encode("latin-1")})
    assert read_all(tmp_path, encoding="latin-1")[0]["caption_original"] == "größe"
    assert "see read.encoding" in read_all(tmp_path)[0]["detail"]


def test_a_row_with_bytes_that_are_invalid_in_its_encoding_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(
        "url,caption\nhttp://a,犬\n".encode("shift_jis") + b"http://b,\xff\xff\nhttp://c,x\n"
    )
    rows = read_all(tmp_path, encoding="shift_jis")
    assert [row["reason"] for row in rows] == [None, "bad_row", None]


@pytest.mark.parametrize("encoding", ["nope", "base64", "rot13", "\0", "../x"])
def test_an_unknown_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(UserError, match="encoding is"):
        ReadConfig(encoding=encoding)


def test_fields_may_have_another_delimiter_no_header_and_no_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b'\xef\xbb\xbf"a dog\thttp://a/1\na "cat"\thttp://a/2\n')
    config = {"columns": ("caption", "url"), "quotes": False}
    rows = read_all(tmp_path, 1, **config)
    assert [(row["caption_original"], row["url"]) for row in rows] == [
        ('"a dog', "http://a/1"),
        ('a "cat"', "http://a/2"),
    ]
    for bad in ('"', ";;", "", "\n"):
        with pytest.raises(UserError, match="delimiter is"):
            ReadConfig(delimiter=bad)


def test_errors_of_the_disk_are_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(COMPRESS[".zst"](os.urandom(MB)))

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("pipeline.read.streams.open_file", lambda path, **_: Broken())
    with (
        pytest.raises(UserError, match="Input/output error") as found,
        input_errors("a.jsonl.zst"),
        open_stream(str(tmp_path / "a.jsonl.zst")) as file,
    ):
        file.read(10)
    assert type(found.value) is UserError
