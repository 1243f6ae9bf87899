"""Two processes train as one does on the whole batch."""

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

from common.errors import UserError
from tests.trainer.memory_loader import MemoryLoader
from tests.trainer.small_run import small_config
from trainer import build, loop
from trainer.config import ParallelConfig, TrainConfig
from trainer.distributed.process import LostProcessError, Process, pick_device, report_lost_processes, session, wrap

STEPS = 3


def losses(config: TrainConfig, process: Process) -> list[dict[str, float]]:
    torch.set_num_threads(1)
    with patch.object(build, "Loader", MemoryLoader):
        run = build.build(config, process)
    batches = iter(run.loader)
    return [loop.update(run, next(batches)) for _ in range(STEPS)]


def one_of_two(rank: int, config: TrainConfig, folder: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["TEST_PORT"])
    with session("cpu", 60) as process:
        rows = losses(config, process)
        if process.is_main:
            Path(folder, "losses.json").write_text(json.dumps(rows))


@pytest.mark.parametrize(
    "others",
    [
        ("parallel.strategy=ddp", "model_name=phyclip", "model.factor_dim=8"),
        ("parallel.strategy=ddp", "micro_batch_size=3", "checkpoint_activations=true"),
        ("parallel.strategy=fsdp",),
        ("parallel.strategy=fsdp", "micro_batch_size=3", "checkpoint_activations=true"),
        ("parallel.strategy=fsdp", "micro_batch_size=3", "data.boxes=all"),
    ],
    ids=["ddp", "ddp in micro-batches", "fsdp", "fsdp in micro-batches", "fsdp in micro-batches of unequal boxes"],
)
def test_two_processes_lose_what_one_loses_on_the_whole_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int, others: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TEST_PORT", str(free_port))
    config = small_config(tmp_path / "run", *others)
    # Forked: what takes long is importing torch.
    torch.multiprocessing.start_processes(one_of_two, args=(config, str(tmp_path)), nprocs=2, start_method="fork")
    both = json.loads((tmp_path / "losses.json").read_text())
    alone = losses(config, Process(device=torch.device("cpu")))
    for step, (found, expected) in enumerate(zip(both, alone, strict=True)):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert found[key] == pytest.approx(value, rel=2e-4, abs=1e-6), (step, key)
    assert alone[0]["loss/total"] != alone[2]["loss/total"]


def convolve(rank: int, folder: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["TEST_PORT"])
    with session("cpu", 60) as process:
        network: Any = nn.Conv2d(3, 4, 3)
        wrap(network, ParallelConfig(), process)
        lies_so = network.weight.is_contiguous(memory_format=torch.channels_last)
    Path(folder, f"{rank}.txt").write_text(str(lies_so))


def test_convolutions_lie_in_memory_as_their_gradients_do_which_else_ddp_copies_and_warns_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("TEST_PORT", str(free_port))
    torch.multiprocessing.start_processes(convolve, args=(str(tmp_path),), nprocs=2, start_method="fork")
    assert (tmp_path / "0.txt").read_text() == "True"


def test_a_process_that_is_gone_is_a_message_and_any_other_error_is_not() -> None:
    two = Process(device=torch.device("cpu"), rank=0, world_size=2)
    with (
        pytest.raises(LostProcessError, match="step_00000005 is complete"),
        report_lost_processes(two, "step_00000005 is complete"),
    ):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:24033")
    with pytest.raises(dist.DistBackendError), report_lost_processes(Process(device=torch.device("cpu")), ""):
        raise dist.DistBackendError("alone")
    with pytest.raises(RuntimeError, match="mat1"), report_lost_processes(two, ""):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU is asked for one")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="device=cuda"):
        pick_device("cuda")
    assert pick_device("auto") == torch.device("cpu")
