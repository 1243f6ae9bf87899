"""Shards of one row group: each reads on where the last one ended, and has the same rows as when it is read alone."""

import os
import random
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hypergrit_common.errors import UserError
from pipeline.read import parquet
from pipeline.read.config import ReadConfig
from pipeline.read.plan import Batch, CutFile, ShardPlans
from pipeline.read.source import read_shard
from pipeline.read.types import ShardPlan
from tests.pipeline.settings import with_constants

N_ROWS = 20_000
SHORT_ROWS = with_constants(ReadConfig, max_row_bytes=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with three row groups, whose pages have some hundred rows."""
    found = tmp_path_factory.mktemp("groups") / "a.parquet"
    rows = {"url": [f"http://example.org/{i * 2654435761 % 2**32:x}.jpg" for i in range(N_ROWS)]}
    rows["caption"] = [f"a dog {i} {'and a cat ' * (i % 7)}" for i in range(N_ROWS)]
    pq.write_table(pa.table(rows), found, row_group_size=9000, data_page_size=4096, compression=None)
    return found


@pytest.fixture(autouse=True)
def no_stream() -> None:
    parquet._last.clear()


def plans_of(path: Path, rows_per_shard: int = 500, version: str | None = None) -> list[ShardPlan]:
    version = str(path.stat().st_mtime_ns) if version is None else version
    file = CutFile(str(path), path.stat().st_size, [[0, 0, 1], [N_ROWS, 0, 1]], version)
    return list(ShardPlans([Batch([file], rows_per_shard)]))


def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows at which streams begin, from now on."""
    found, real = list[int](), parquet.Stream.__init__

    def note(self: parquet.Stream, piece: parquet.Piece, config: ReadConfig) -> None:
        found.append(piece.first_row)
        real(self, piece, config)

    monkeypatch.setattr(parquet.Stream, "__init__", note)
    return found


@pytest.mark.parametrize("rows_per_shard", [500, 3333, 4096, 9000])
def test_consecutive_shards_open_a_file_once(path: Path, rows_per_shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [read_shard(plan, ReadConfig()) for plan in plans_of(path, rows_per_shard, version="")]
    streams = opened(monkeypatch)
    assert [read_shard(plan, ReadConfig()) for plan in plans_of(path, rows_per_shard)] == alone
    assert streams == [0]


def test_shards_in_any_order_have_the_same_rows(path: Path) -> None:
    plans = plans_of(path, 700)
    alone = [read_shard(plan, ReadConfig()) for plan in plans_of(path, 700, version="")]
    rng = random.Random(5)
    places = [i for start in rng.sample(range(len(plans)), 12) for i in range(start, min(start + 3, len(plans)))]
    assert [read_shard(plans[i], ReadConfig()) for i in places] == [alone[i] for i in places]


def test_a_stream_is_not_continued_with_other_settings_or_backwards(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans, streams = plans_of(path), opened(monkeypatch)
    read_shard(plans[0], ReadConfig())
    read_shard(plans[1], SHORT_ROWS)
    read_shard(plans[3], SHORT_ROWS)  # skips a shard
    read_shard(plans[30], SHORT_ROWS)  # in the next row group
    read_shard(plans[2], SHORT_ROWS)  # goes back
    assert streams == [0, 500, 15_000, 1000]


def test_a_file_that_was_replaced_is_an_error(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "a.parquet"
    copy.write_bytes(path.read_bytes())
    plans = plans_of(copy)
    read_shard(plans[0], ReadConfig())
    os.utime(copy, ns=(0, 1))
    with pytest.raises(UserError, match="has changed since the job was planned"):
        read_shard(plans[1], ReadConfig())


def test_a_shard_reads_its_columns_up_to_its_last_page(path: Path) -> None:
    def read() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))

    plans, size, found = plans_of(path), path.stat().st_size, list[int]()
    for plan in plans[:8]:
        before = read()
        read_shard(plan, ReadConfig())
        found.append(read() - before)
    assert sum(found) < size
    assert max(found[1:]) < size / 4


def test_columns_that_are_not_read_do_not_count_as_kept_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"url": [f"http://example.org/{i}.jpg" for i in range(400)], "caption": ["a dog"] * 400}
    store = fsspec.filesystem("memory")
    with store.open("/kept/a.parquet", "wb") as file:
        pq.write_table(pa.table(rows | {"embedding": [os.urandom(500)] * 200 + [os.urandom(400)] * 200}), file)
    monkeypatch.setattr(parquet, "KEPT_BYTES", 20_000)
    size = store.size("/kept/a.parquet")
    plans = list(ShardPlans([Batch([CutFile("memory://kept/a.parquet", size, [[0, 0, 1], [400, 0, 1]], "1")], 100)]))
    streams = opened(monkeypatch)
    for plan in plans:
        for piece in plan.pieces:
            assert sum(batch.num_rows for _, batch in parquet.read_batches(piece, ReadConfig())) == 100
    assert streams == [0]
    monkeypatch.setattr(parquet, "KEPT_BYTES", 100)
    parquet._last.clear()
    for plan in plans:
        list(parquet.read_batches(plan.pieces[0], ReadConfig()))
    assert streams == [0, 0, 100, 200, 300]
