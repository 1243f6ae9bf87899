"""Work of rank 0 while the others wait."""

import json
import os
import time
from pathlib import Path

import pytest
import torch

from hypergrit_common.errors import UserError
from trainer.distributed import gather as rank_zero
from trainer.distributed.gather import on_rank_0
from trainer.distributed.process import process_group

TIMEOUT_S = 5.0


def work(message: str) -> int:
    if message:
        raise UserError(message)
    time.sleep(2 * TIMEOUT_S)  # without a chance to give a sign of life
    return os.getpid()


def one_of_two(rank: int, folder: str, port: int, message: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    rank_zero.BEAT_S = 0.2  # type: ignore[misc]
    with process_group("cpu", TIMEOUT_S):
        try:
            result: object = [os.getpid(), on_rank_0(lambda: work(message))]
        except UserError as error:
            result = str(error)
        Path(folder, f"{rank}.json").write_text(json.dumps(result))


def results(folder: Path, port: int, message: str) -> list[object]:
    torch.multiprocessing.start_processes(one_of_two, args=(str(folder), port, message), nprocs=2, start_method="fork")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.rest
def test_the_other_ranks_wait_for_one_long_call_beyond_the_time_limit(tmp_path: Path, free_port: int) -> None:
    (first, found), (_, nothing) = results(tmp_path, free_port, "")  # type: ignore[misc, has-type]
    assert (found, nothing) == (first, None)


def test_an_error_of_rank_0_is_raised_on_all_ranks(tmp_path: Path, free_port: int) -> None:
    assert results(tmp_path, free_port, "shards: gone") == ["shards: gone"] * 2


def test_a_single_process_works_without_a_group() -> None:
    assert on_rank_0(lambda: 3) == 3
    with pytest.raises(UserError, match="gone"):
        on_rank_0(lambda: work_without_wait("gone"))


def work_without_wait(message: str) -> None:
    raise UserError(message)
