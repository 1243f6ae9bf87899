"""The places of samples take no memory; the file that holds them has no name."""

import os
import pickle
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hypergrit_common.errors import UserError
from trainer.data.index import Places, SampleIndex, ShardIndex

PER_SHARD = 10_000


def shards(n: int) -> Iterator[ShardIndex]:
    for number in range(n):
        starts = np.arange(PER_SHARD, dtype=np.uint32) * 9 + number
        yield ShardIndex(f"s3://bucket/train/{number:06d}.tar", 1 << 26, starts, np.full(PER_SHARD, 4000, np.uint32))


def test_an_index_takes_memory_per_shard_only() -> None:
    tracemalloc.start()
    index = SampleIndex(shards(400))
    assert index.n_samples == 4_000_000
    for sample in (0, 1_234_567, 3_999_999):
        shard, row = index.locate(sample)
        assert (shard.name, row) == (f"{sample // PER_SHARD:06d}.tar", sample % PER_SHARD)
        start = (row * 9 + sample // PER_SHARD) * 512
        assert index.byte_range(sample) == (shard.url, start, start + 4000)
    in_use, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert in_use < 400 * 500
    assert peak < 2_000_000  # 8 bytes per sample would be 32 MB
    assert index.mean_bytes == 4000


def test_the_file_has_no_name_and_is_closed_with_the_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    index = SampleIndex(shards(1))
    assert not list(tmp_path.iterdir())
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del index
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pickled_index_has_its_own_places() -> None:
    index = SampleIndex(shards(2))
    copy = pickle.loads(pickle.dumps(index))
    assert copy.byte_range(12_345) == index.byte_range(12_345)
    assert copy.places.path != index.places.path


def test_a_folder_without_room_is_a_user_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    places = Places(Path("/dev/full").open("r+b", buffering=0))  # noqa: SIM115
    with pytest.raises(UserError, match=r"cannot be written to .*No space left on device; .* set TMPDIR"):
        places.append(np.zeros((3, 2), np.uint32))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"cannot be written to .*/none: .*set TMPDIR"):
        Places()
