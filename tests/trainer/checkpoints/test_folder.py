"""The folder of a run at a URL: one copy per machine, whatever the names of the machines."""

import json
import os
from pathlib import Path

import pytest
import torch

from trainer.checkpoints import folder
from trainer.distributed.gather import all_ranks
from trainer.distributed.process import process_group


def one_of_three(rank: int, work: str, port: int) -> None:
    """Open the folder on one of three ranks; rank 2 is on another machine with the same host name."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    folder.machine = lambda: "1" if rank == 2 else "0"  # type: ignore[assignment]
    with process_group("cpu", 30) as process, folder.open_run_folder(f"file://{work}/run", process) as found:
        Path(work, f"{rank}.json").write_text(json.dumps([str(found.path), found.newest_checkpoint()]))
        all_ranks(rank)  # the one that made the copy removes it


def test_nodes_with_equal_host_names_have_their_own_copies_of_the_newest_checkpoint(
    tmp_path: Path, free_port: int
) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "step_00000005"
    checkpoint.mkdir(parents=True)
    (checkpoint / folder.MARK).write_text("{}")
    torch.multiprocessing.start_processes(one_of_three, args=(str(tmp_path), free_port), nprocs=3, start_method="fork")
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert [newest for _, newest in found] == [f"file://{checkpoint}"] * 3
    assert found[0][0] == found[1][0] != found[2][0]


@pytest.mark.parametrize("name", ["step_00000005/state.json", "checkpoints/step_00000005", "checkpoints/x/state.json"])
def test_only_state_json_in_a_step_marks_a_checkpoint(name: str) -> None:
    assert not folder.is_mark(name)
    assert folder.is_mark("checkpoints/step_00000005/state.json")
