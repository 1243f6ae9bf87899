"""Two processes compute the same losses as one process on the full batch, and report a lost process."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from common.errors import UserError
from tests.trainer.small_run import small_config, write_data
from trainer.build import Run, build
from trainer.config import TrainConfig
from trainer.distributed.config import ParallelConfig
from trainer.distributed.process import (
    LostProcessError,
    Process,
    pick_device,
    process_group,
    report_lost_processes,
    wrap,
)
from trainer.step import update

STEPS = 3
UNEQUAL_BOXES = ("parallel.strategy=fsdp", "micro_batch_size=3", "data.boxes=all")


def build_on_one_thread(config: TrainConfig, process: Process) -> Run:
    torch.set_num_threads(1)
    return build(config, process)


def train_steps(run: Run) -> list[tuple[dict[str, float], int]]:
    """The losses of each step, and the number of images, boxes included, in its batch on this rank."""
    steps, batches = [], iter(run.loader)
    for _ in range(STEPS):
        batch = next(batches)
        assert batch.box_images is not None
        steps.append((update(run, batch), len(batch.images) + len(batch.box_images)))
    return steps


def one_of_two(rank: int, config: TrainConfig, folder: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["TEST_PORT"])
    with process_group("cpu", 60) as process:
        steps = train_steps(build_on_one_thread(config, process))
        Path(folder, f"{rank}.json").write_text(json.dumps(steps))


@pytest.mark.parametrize(
    "others",
    [
        ("parallel.strategy=ddp", "model_name=phyclip", "model.factor_dim=8"),
        ("parallel.strategy=ddp", "micro_batch_size=3", "checkpoint_activations=true"),
        ("parallel.strategy=fsdp",),
        ("parallel.strategy=fsdp", "micro_batch_size=3", "checkpoint_activations=true"),
        UNEQUAL_BOXES,
    ],
    ids=["ddp", "ddp in micro-batches", "fsdp", "fsdp in micro-batches", "fsdp in micro-batches of unequal boxes"],
)
def test_two_processes_have_the_losses_of_one_on_the_full_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int, others: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TEST_PORT", str(free_port))
    write_data(tmp_path / "run")
    config = small_config(tmp_path / "run", *others)
    # Forked, because importing torch again would take seconds.
    torch.multiprocessing.start_processes(one_of_two, args=(config, str(tmp_path)), nprocs=2, start_method="fork")
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    one_process = train_steps(build_on_one_thread(config, Process(device=torch.device("cpu"))))
    for step, ((found, _), (expected, _)) in enumerate(zip(ranks[0], one_process, strict=True)):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert found[key] == pytest.approx(value, rel=2e-4, abs=1e-6), (step, key)
    assert one_process[0][0]["loss/total"] != one_process[2][0]["loss/total"]
    if others == UNEQUAL_BOXES:
        n_micro_batches = [[math.ceil(n_images / 3) for _, n_images in steps] for steps in ranks]
        assert n_micro_batches[0] != n_micro_batches[1]


def wrap_convolution(rank: int, folder: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["TEST_PORT"])
    with process_group("cpu", 60) as process:
        network: Any = nn.Conv2d(3, 4, 3)
        wrap(network, [], ParallelConfig(), process)
        is_channels_last = network.weight.is_contiguous(memory_format=torch.channels_last)
    Path(folder, f"{rank}.txt").write_text(str(is_channels_last))


def test_ddp_makes_convolutions_channels_last_like_their_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("TEST_PORT", str(free_port))
    torch.multiprocessing.start_processes(wrap_convolution, args=(str(tmp_path),), nprocs=2, start_method="fork")
    assert (tmp_path / "0.txt").read_text() == "True"


def test_a_lost_process_is_a_user_error_and_other_errors_are_raised_unchanged() -> None:
    two = Process(device=torch.device("cpu"), rank=0, world_size=2)
    with (
        pytest.raises(LostProcessError, match="step_00000005 is complete; repeat the command to resume"),
        report_lost_processes(two, "step_00000005 is complete"),
    ):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:24033")
    with pytest.raises(dist.DistBackendError), report_lost_processes(Process(device=torch.device("cpu")), ""):
        raise dist.DistBackendError("alone")
    with pytest.raises(RuntimeError, match="mat1"), report_lost_processes(two, ""):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_does_not_exist_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(UserError, match="device=cuda"):
        pick_device("cuda")
    assert pick_device("auto") == torch.device("cpu")
