"""Plans that are computed when they are asked for, and tars that are planned from their index or in processes."""

import os
import random
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from pipeline.output import inputs as scan
from pipeline.output.write.tar import TarWriter
from pipeline.read.config import ReadConfig
from pipeline.read.listing import list_files
from pipeline.read.plan import Batch, CutFile, ShardPlans, cut_files
from pipeline.read.samples import indexed_starts, scan_tars
from pipeline.read.source import read_shard
from pipeline.read.streams import DamagedFileError
from pipeline.read.types import Piece, ShardPlan
from tests.pipeline.commands.derive.outputs import make_output, random_shards


def one_by_one(files: Sequence[CutFile], rows_per_shard: int, first_shard: int, first_row: int) -> list[ShardPlan]:
    """The plans, made piece by piece."""
    pieces: list[list[Piece]] = []
    total = 0
    for file in files:
        for start, end in pairwise(file.cuts):
            if total // rows_per_shard == len(pieces):
                pieces.append([])
            pieces[-1].append(Piece(file.path, start[0], end[0] - start[0], file.size, *start[1:], file.version))
            total += end[0] - start[0]
    return [
        ShardPlan(first_shard + i, first_row + i * rows_per_shard, sum(piece.n_rows for piece in found), tuple(found))
        for i, found in enumerate(pieces)
    ]


def test_plans_are_those_of_the_cuts() -> None:
    rng = random.Random(3)
    for _ in range(200):
        rows_per_shard, total, files = rng.randint(1, 7), 0, list[CutFile]()
        for number in range(rng.randint(0, 5)):
            n = rng.choice([0, 0, 1, 3, 20])
            rows = sorted({0, *range(-total % rows_per_shard, n, rows_per_shard)}) if n else []
            suffix = rng.choice([".jsonl", ".tar", ".parquet"])
            places = [(0, 1) if suffix == ".parquet" else (rng.randint(0, 999), rng.randint(0, 9)) for _ in rows]
            cuts = [[row, *place] for row, place in zip(rows, places, strict=True)] + [[n, 0, 1]]
            files.append(CutFile(f"{number}{suffix}", 99, cuts, "v"))
            total += n
        first_shard, first_row = rng.randint(0, 9), rng.randint(0, 9)
        plans = ShardPlans([Batch(files, rows_per_shard, first_shard, first_row)])
        expected = one_by_one(files, rows_per_shard, first_shard, first_row)
        assert list(plans) == plans == expected
        assert plans.indices().tolist() == [plan.index for plan in expected]
        gone = {plan.index for plan in expected if rng.random() < 0.5}
        left = plans.without(gone)
        assert left == [plan for plan in expected if plan.index not in gone]
        assert left[1:] == list(left)[1:]
        assert left.without({left[0].index} if left else set()) == list(left)[1:]


def test_batches_follow_each_other() -> None:
    batches = [Batch([CutFile("a.parquet", 9, [[0, 0, 1], [5, 0, 1]])], 2), Batch([], 2, 3, 5)]
    batches.append(Batch([CutFile("b.parquet", 9, [[0, 0, 1], [3, 0, 1]])], 2, 3, 5, (5,)))
    plans = ShardPlans(batches)
    assert [(plan.index, plan.first_row, plan.n_rows) for plan in plans] == [
        *[(0, 0, 2), (1, 2, 2), (2, 4, 1)],
        *[(3, 5, 2), (4, 7, 1)],
    ]
    assert plans[-1].appends == (5,)
    with pytest.raises(IndexError):
        plans[5]


def test_damaged_cuts_are_no_plan() -> None:
    with pytest.raises(ValueError, match=r"a\.csv"):
        Batch([CutFile("a.csv", 9, [[0, 0], [5, 0]])], 2)
    with pytest.raises(ValueError, match="start of row 2 is not known"):
        list(ShardPlans([Batch([CutFile("a.csv", 9, [[0, 0, 1], [5, 0, 1]])], 2)]))


def write_tars(folder: Path, n_tars: int) -> None:
    for number in range(n_tars):
        with (folder / f"{number:02d}.tar").open("wb") as file, TarWriter(file) as tar:
            for i in range(number % 4):
                tar.add_sample(f"{number}{i}", [("jpg", bytes(700 * i)), ("txt", b"a dog")])


def test_tars_scanned_in_processes_are_cut_at_the_same_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tars(tmp_path, 12)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    files = list_files(str(tmp_path))
    for limit in (None, 7):
        alone = cut_files(files, 3, limit, ReadConfig())
        assert cut_files(files, 3, limit, ReadConfig(), scan=scan.scan_in_processes) == alone
        assert sum(file.n_rows for file in alone) == (limit or 18)
    whole = (tmp_path / "07.tar").read_bytes()
    (tmp_path / "07.tar").write_bytes(whole[:3172])  # within the second sample
    found = cut_files(files, 3, None, ReadConfig(), scan=scan.scan_in_processes)
    (damaged,) = [file for file in found if file.damage]
    assert damaged.path.endswith("07.tar")
    (tmp_path / "07.tar").write_bytes(b"no tar")
    with pytest.raises(DamagedFileError, match=r"07\.tar"):
        cut_files(files, 3, None, ReadConfig(), scan=scan.scan_in_processes)


def test_tars_of_an_output_are_planned_from_their_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out"
    make_output(output, random_shards(1, 3))
    files = list_files(f"{output}/grit")
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.read.samples.tar_rows", None)
        found = cut_files(files, 3, None, ReadConfig())
    bare = tmp_path / "bare"
    shutil.copytree(output / "grit", bare)
    expected = cut_files(list_files(str(bare)), 3, None, ReadConfig())
    assert [file.cuts for file in found] == [file.cuts for file in expected]
    shards = list(ShardPlans([Batch(found, 3)]))
    assert sum(plan.n_rows for plan in shards) == sum(file.n_rows for file in expected)
    assert all(row["caption_original"] for plan in shards for row in read_shard(plan, ReadConfig()).to_pylist())


def test_an_index_that_does_not_fit_is_not_used(tmp_path: Path) -> None:
    make_output(tmp_path, random_shards(1, 2))
    (path, size), (other, _) = list_files(f"{tmp_path}/grit")
    assert indexed_starts(path, size) is not None
    assert indexed_starts(path, size + 512) is None
    index = tmp_path / "_index/00000.arrow"
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 1
    index.write_bytes(data)
    assert indexed_starts(path, size) is None
    (tmp_path / "_manifests/00001.json").write_text("{}")
    assert indexed_starts(other, size) is None
    (tmp_path / "_manifests/00001.json").unlink()
    os.mkfifo(tmp_path / "_manifests/00001.json")
    assert indexed_starts(other, size) is None  # and does not wait for a writer
    assert sum(len(found.starts) for found in scan_tars([(path, size, "")], ReadConfig(), None)) > 0
