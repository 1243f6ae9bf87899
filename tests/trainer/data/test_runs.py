"""Samples that are read in runs equal those that are read one by one, within the limits of files and memory."""

import os
import random
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.trainer.data.loading import assert_batches_equal, resumed, small_loader, take
from tests.trainer.data.samples import Files, pair_files, write_shards, write_tar
from trainer.data import batch_builder, order, runs
from trainer.data.indexing import build_index
from trainer.data.loader import Loader
from trainer.data.order import BlockOrder
from trainer.data.runs import RunReader, run_length
from trainer.data.shards import MAX_OPEN_FILES

NO_NEEDS = frozenset[str]()


@pytest.fixture
def blocks_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of four samples, of which 32 are open."""
    monkeypatch.setattr(order, "MIN_WIDTH", 32)
    monkeypatch.setattr(order, "MAX_BLOCK", 4)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Three shards with 300 samples."""
    return write_shards(tmp_path / "pairs", [130, 101, 69], pair_files)


def pair_loader(shards: object, batch: int = 4, **fields: Any) -> Loader:
    return small_loader(shards, batch, NO_NEEDS, **fields)


@pytest.mark.usefixtures("blocks_of_four")
def test_batches_do_not_depend_on_workers_ranks_and_runs(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = take(pair_loader(pairs, 8), 80)  # two epochs
    assert_batches_equal(take(pair_loader(pairs, 8, workers=2), 80), expected)
    ranks = [take(pair_loader(pairs, 4, rank=rank, world_size=2), 80) for rank in range(2)]
    assert [batch.keys for batch in expected] == [a.keys + b.keys for a, b in zip(*ranks, strict=True)]
    monkeypatch.setattr("trainer.data.batch_builder.run_length", lambda *_: 1)
    assert_batches_equal(take(pair_loader(pairs, 8), 80), expected)


@pytest.mark.usefixtures("blocks_of_four")
def test_a_large_batch_is_read_in_parts_and_is_the_same(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, read, parts = take(pair_loader(pairs, 64), 3), RunReader.read, []
    monkeypatch.setattr(RunReader, "read", lambda self, *asked: parts.append(read(self, *asked)) or parts[-1])
    monkeypatch.setattr(runs, "MAX_PART_BYTES", 16_000)
    assert_batches_equal(take(pair_loader(pairs, 64), 3), expected)
    assert len(parts) > 12
    assert max(sum(map(len, part)) for part in parts) <= 16_000


def test_a_sample_above_the_limit_is_bad_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(number: int) -> Files:
        return pair_files(number) | ({"video": bytes(100_000)} if number % 8 == 0 else {})

    for owner in (runs, batch_builder):
        monkeypatch.setattr(owner, "MAX_SAMPLE_BYTES", 50_000)
    source = pair_loader(write_shards(tmp_path, [80], make), 16)
    sizes: list[int] = []
    read = source.builder.reader.files.read
    monkeypatch.setattr(
        source.builder.reader.files,
        "read",
        lambda ranges: (sizes.extend(item.end - item.start for item in ranges), read(ranges))[1],
    )
    take(source, 5)
    assert source.counts["bad/too_large"] >= 10
    assert max(sizes) <= 50_000


@pytest.mark.usefixtures("blocks_of_four")
@pytest.mark.parametrize("step", [1, 5, 37, 38, 60])
def test_a_run_resumes_at_any_step(pairs: Path, step: int) -> None:
    source = resumed(pair_loader(pairs, 8, workers=1), step, pair_loader(pairs, 8))
    assert_batches_equal(take(source, 4), take(pair_loader(pairs, 8), step + 4)[step:])


@pytest.mark.usefixtures("blocks_of_four")
def test_an_epoch_takes_a_request_per_block(pairs: Path) -> None:
    source = pair_loader(pairs, 4)
    deque(islice(source, 75), maxlen=0)  # one epoch of 300 samples
    assert isinstance(source.order, BlockOrder)
    assert source.order.block == 4
    assert source.builder.reader.length == 4
    n_open = source.order.width  # of each, two parts are read; two shards end within a block
    assert 75 <= source.builder.reader.n_requests <= 75 + n_open + 3
    source.close()


@pytest.mark.usefixtures("blocks_of_four")
def test_an_epoch_of_a_remote_store_takes_a_request_per_block(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = fsspec.filesystem("memory")
    for path in pairs.iterdir():
        fs.pipe(f"/runs/{path.name}", path.read_bytes())
    source = pair_loader("memory://runs")
    expected = take(pair_loader(pairs), 75)
    requests = []
    cat = MemoryFileSystem.cat_file
    monkeypatch.setattr(
        MemoryFileSystem, "cat_file", lambda self, path, *rest, **named: requests.append(path) or cat(self, path, *rest)
    )
    found = take(source, 75)
    assert_batches_equal(found, expected)
    assert len(requests) < 150
    fs.rm("/runs", recursive=True)


def test_random_runs_give_the_bytes_of_single_reads(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build_index([str(path) for path in sorted(pairs.iterdir())])
    single = RunReader(index)
    alone = [single.read([sample])[0] for sample in range(300)]
    rng = random.Random(0)
    for limit in (0, 20_000, 1 << 30):
        monkeypatch.setattr(runs, "MAX_KEPT_BYTES", limit)
        reader = RunReader(index, length=5)
        for _ in range(100):
            samples = [rng.randrange(300) for _ in range(7)]
            assert reader.read(samples, [rng.randrange(9) for _ in samples]) == [alone[sample] for sample in samples]
            assert sum(map(len, reader.kept.values())) == reader.n_kept_bytes <= limit
        reader.close()
        assert not reader.kept


def test_many_shards_need_few_open_files_and_little_memory(tmp_path: Path) -> None:
    files = pair_files(0)
    for shard in range(MAX_OPEN_FILES + 80):
        write_tar(tmp_path / f"{shard:05d}.tar", [(f"{shard}-{n}", files) for n in range(2)])
    before = len(os.listdir("/proc/self/fd"))
    source = pair_loader(tmp_path, 16)
    batches = iter(source)
    for _ in range(60):
        next(batches)
        assert len(os.listdir("/proc/self/fd")) - before <= MAX_OPEN_FILES + 8 <= 512
    assert len(source.builder.reader.files.open_files) == MAX_OPEN_FILES
    source.close()


@pytest.mark.parametrize(("batch", "world_size", "workers", "mean_bytes", "length"), [
    (256, 8, 2, 50_000, 10),  # 2,048 pairs on 8 GPUs
    (256, 8, 4, 50_000, 16),
    (96, 8, 2, 50_000, 16),  # 768 pairs on 8 GPUs
    (2048, 1, 2, 50_000, 1),  # would need 0.4 GB for runs of two
    (2048, 1, 2, 20_000, 3),
    (256, 8, 3, 50_000, 1),  # the samples of a block belong to three processes
    (24, 32, 2, 50_000, 1),  # to two ranks
])  # fmt: skip
def test_runs_fit_into_memory_and_belong_to_one_process(
    batch: int, world_size: int, workers: int, mean_bytes: float, length: int
) -> None:
    blocks = BlockOrder(20_000_000, 0, order.block_width(batch * world_size))
    assert run_length(blocks, mean_bytes, batch, world_size, workers) == length
    n_open = blocks.width / (world_size * workers)
    assert length == 1 or n_open * length * mean_bytes <= runs.MAX_KEPT_BYTES <= 1 << 29


def test_a_run_with_another_batch_size_keeps_its_order(pairs: Path) -> None:
    state = pair_loader(pairs, 8).state_dict()
    other = pair_loader(pairs, 3000)
    other.load_state_dict(state)
    assert other.order == pair_loader(pairs, 8).order
