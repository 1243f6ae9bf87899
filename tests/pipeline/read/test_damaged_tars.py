"""Truncated and damaged tars: the complete samples are read, and the damage is always recorded."""

import gzip
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from pipeline.output.write.tar import TarWriter
from pipeline.read.config import ReadConfig
from pipeline.read.plan import CutFile, cut_files
from schemas.files import JOB_FILE, STATS_FILE
from tests.pipeline.jobs import run_job
from tests.pipeline.read.test_stage import read_all
from tests.trainer.data.samples import jpeg

N = 12
BLOCK = 512


def write_pairs(path: Path, n: int = N, image: bytes = b"i" * 700) -> list[int]:
    """Write a tar of `n` pairs; return the end of each sample."""
    with path.open("wb") as file, TarWriter(file) as tar:
        for i in range(n):
            tar.add_sample(f"{i:06d}", [("jpg", image), ("txt", f"a dog {i}".encode())])
    return [sample.end for sample in tar.samples]


def cut(path: Path, rows_per_shard: int = 4, **config: bool) -> CutFile:
    (found,) = cut_files([(str(path), path.stat().st_size)], rows_per_shard, None, ReadConfig(**config))
    return found


def captions(path: Path, rows_per_shard: int = 4) -> list[str]:
    return [row["caption_original"] for row in read_all(path, rows_per_shard, skip_damaged=True)]


def test_a_tar_cut_at_any_byte_is_damaged_and_its_complete_samples_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    ends = write_pairs(path)
    data = path.read_bytes()
    cuts = {0, 4096, 4700, 5000, 5100, 5120, 10000, 20480} | {end + past for end in ends for past in (-1, 0, 1, 511)}
    for size in sorted(cuts | set(range(256, ends[-1] + BLOCK, 512))):
        if size >= ends[-1] + BLOCK:
            continue
        path.write_bytes(data[:size])
        # The header of the next sample tells that a sample is complete.
        n_complete = sum(size >= end + BLOCK for end in ends)
        found = cut(path, skip_damaged=True)
        assert (size, found.cuts[-1].row) == (size, n_complete)
        assert str(path) in found.damage, size
        if n_complete:
            assert captions(path) == [f"a dog {i}" for i in range(n_complete)], size


@pytest.mark.parametrize("rows_per_shard", [1, 3, 100])
def test_a_tar_without_end_mark_names_the_sample_that_is_left_out(tmp_path: Path, rows_per_shard: int) -> None:
    path = tmp_path / "a.tar"
    ends = write_pairs(path)
    path.write_bytes(path.read_bytes()[: ends[-1]])
    assert f"no end-of-archive mark at byte {ends[-1]}" in cut(path).damage
    assert "the sample of 000011.jpg may be incomplete and is left out" in cut(path).damage
    assert len(captions(path, rows_per_shard)) == N - 1


def test_one_block_of_zeros_is_an_end_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    ends = write_pairs(path)
    path.write_bytes(path.read_bytes()[: ends[-1] + BLOCK])
    assert cut(path).damage == ""
    assert len(captions(path)) == N


@pytest.mark.parametrize("size", [32 << 10, 1 << 20, (1 << 20) + 100])
def test_a_tar_with_longer_padding_is_complete(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.tar"
    write_pairs(path)
    os.truncate(path, size)
    assert cut(path).damage == ""
    assert len(captions(path)) == N


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_all_samples_of_joined_tars_are_read(tmp_path: Path, suffix: str) -> None:
    joined = b""
    for part in range(2):
        with tarfile.open(tmp_path / "part", "w") as tar:
            for i in range(3):
                for kind, content in (("jpg", b"i" * 700), ("txt", f"cat {part}{i}".encode())):
                    info = tarfile.TarInfo(f"{part}{i}.{kind}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        content = (tmp_path / "part").read_bytes()
        joined += gzip.compress(content) if suffix.endswith("gz") else content
    path = tmp_path / f"a{suffix}"
    path.write_bytes(joined)
    assert cut(path).damage == ""
    assert captions(path) == ["cat 00", "cat 01", "cat 02", "cat 10", "cat 11", "cat 12"]


@pytest.mark.parametrize("rows_per_shard", [1, 2, 100])
@pytest.mark.parametrize("position", [0, 3, 5, 110, 130, 150, 300, 500])
def test_samples_before_that_of_a_damaged_header_are_read(tmp_path: Path, position: int, rows_per_shard: int) -> None:
    path = tmp_path / "a.tar"
    ends = write_pairs(path)
    data = path.read_bytes()
    for start in (ends[1], ends[1] + 3 * BLOCK):  # the jpg and the txt of the third sample
        flipped = bytearray(data)
        flipped[start + position] ^= 0x41
        path.write_bytes(flipped)
        assert captions(path, rows_per_shard) == ["a dog 0", "a dog 1"]


def test_a_truncated_tar_ends_the_job_with_code_3_and_drops_no_row(tmp_path: Path) -> None:
    path, output = tmp_path / "a.tar", tmp_path / "out"
    ends = write_pairs(path, 6, jpeg())
    path.write_bytes(path.read_bytes()[: ends[4] - 2 * BLOCK])  # between the image of a pair and its caption
    assert run_job(path, output) == 3
    stats, (batch,) = (
        json.loads((output / STATS_FILE).read_text()),
        json.loads((output / JOB_FILE).read_text())["batches"],
    )
    assert stats["rows"]["read"] == 4
    assert "empty_caption" not in json.dumps(stats["rows"]["dropped"])
    assert [file["rows"] for file in stats["damaged"]] == [4]
    assert "000004.jpg may be incomplete" in batch["files"][0]["damage"]
