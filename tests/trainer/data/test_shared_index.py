"""One rank indexes the shards of a run, and the others receive the index."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hypergrit_common.errors import UserError
from hypergrit_common.shards import list_shards
from tests.patience import PATIENCE_S
from tests.trainer.data.samples import write_shards
from trainer.data import indexing, loader
from trainer.data.index import ShardIndex, index_shard
from trainer.data.indexing import build_index
from trainer.data.loader import build_shared_index
from trainer.distributed import gather as rank_zero
from trainer.distributed.process import process_group

TIMEOUT_S = 10.0


def one_of_three(rank: int, folder: str, port: int, delay_s: float) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    opened: list[str] = []

    def slow_scan(url: str) -> ShardIndex:
        opened.append(url)
        time.sleep(delay_s)
        return index_shard(url)

    indexing.index_shard, rank_zero.BEAT_S = slow_scan, 0.1  # type: ignore[assignment]
    with process_group("cpu", TIMEOUT_S):
        try:
            index, versions = build_shared_index(folder, "", None)
            found = [[index.byte_range(sample) for sample in range(index.n_samples)], index.fingerprint]
            problems = [index.shard(number).problem for number in range(len(index.urls))]
            result = {"found": found, "problems": problems, "opened": len(opened), "versions": len(versions)}
        except UserError as error:
            result = {"error": str(error)}
        Path(folder, f"{rank}.json").write_text(json.dumps(result))


def run(folder: Path, port: int, delay_s: float) -> Iterator[dict[str, object]]:
    torch.multiprocessing.start_processes(
        one_of_three, args=(str(folder), port, delay_s), nprocs=3, start_method="fork"
    )
    for rank in range(3):
        yield json.loads((folder / f"{rank}.json").read_text())


@pytest.mark.rest
def test_one_rank_reads_the_headers_and_the_others_wait_beyond_the_time_limit(tmp_path: Path, free_port: int) -> None:
    folder = write_shards(tmp_path, [2, 0, 3, 1, 1, 1])
    (folder / "00002.tar").write_bytes((folder / "00002.tar").read_bytes()[:9000])
    index = build_index(list_shards(str(folder)))
    expected = json.loads(json.dumps([[index.byte_range(n) for n in range(index.n_samples)], index.fingerprint]))
    started = time.monotonic()
    ranks = list(run(folder, free_port, 2.0))
    assert time.monotonic() - started > 6 * 2.0 > TIMEOUT_S
    assert [rank["found"] for rank in ranks] == [expected] * 3
    assert [rank["opened"] for rank in ranks] == [6, 0, 0]
    assert [rank["versions"] for rank in ranks] == [6, 0, 0]
    assert all(rank["problems"] == ranks[0]["problems"] for rank in ranks)
    assert "truncated" in str(ranks[2]["problems"])


def one_of_four(rank: int, folder: str, port: int) -> None:
    """Share an index; ranks 1 and 3 are on a second machine."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="4", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    loader.machine, loader.CHUNK = (lambda: "ab"[rank % 2]), 4  # type: ignore[assignment, misc]
    with process_group("cpu", PATIENCE_S):
        index, _ = build_shared_index(folder, "", None)
        found = [index.byte_range(sample) for sample in range(index.n_samples)]
        inode = os.fstat(index.places.file.fileno()).st_ino
        Path(folder, f"{rank}.json").write_text(json.dumps([found, inode, index.problems]))


def test_the_ranks_of_a_machine_read_one_file(tmp_path: Path, free_port: int) -> None:
    folder = write_shards(tmp_path, [3, 4, 2, 2])
    (folder / "00003.tar").write_bytes((folder / "00003.tar").read_bytes()[:-10_240])
    index = build_index(list_shards(str(folder)))
    expected = json.loads(json.dumps([index.byte_range(n) for n in range(index.n_samples)]))
    torch.multiprocessing.start_processes(one_of_four, args=(str(folder), free_port), nprocs=4, start_method="fork")
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]
    assert [places for places, *_ in found] == [expected] * 4
    first, second = {found[rank][1] for rank in (0, 2)}, {found[rank][1] for rank in (1, 3)}
    assert len(first) == len(second) == 1
    assert first != second
    assert all("3" in problems for *_, problems in found)


def test_all_ranks_end_with_the_error_of_the_one_that_indexes(tmp_path: Path, free_port: int) -> None:
    (tmp_path / "00000.tar").write_bytes(b"no tar" * 200)
    errors = [rank["error"] for rank in run(tmp_path, free_port, 0)]
    assert len(set(errors)) == 1
    with pytest.raises(UserError) as caught:
        build_index([str(tmp_path / "00000.tar")])
    assert errors[0] == str(caught.value)
