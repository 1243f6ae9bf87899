"""Two processes compute the same losses as one process on the full batch, and report a lost process."""

import json
import math
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hypergrit_common.errors import UserError
from tests.patience import PATIENCE_S
from tests.trainer.distributed.test_precision import join_group, start
from tests.trainer.small_run import small_config, write_data
from trainer.config import TrainConfig
from trainer.distributed.config import ParallelConfig
from trainer.distributed.process import (
    LostProcessError,
    Process,
    distribute,
    mark_queued,
    pick_device,
    process_group,
    report_lost_processes,
)
from trainer.training.build import Training, build
from trainer.training.step import update

STEPS = 3
UNEQUAL_BOXES = ("parallel.strategy=fsdp", "micro_batch_size=3", "data.boxes=all")


def train_steps(run: Training) -> list[tuple[dict[str, float], int]]:
    """The losses of each step, and the number of images, boxes included, in its batch on this rank."""
    steps, batches = [], iter(run.loader)
    for _ in range(STEPS):
        batch = next(batches)
        steps.append((update(run, batch), len(batch["image"].rows) + len(batch["box_image"].rows)))
    return steps


def one_of_two(rank: int, config: TrainConfig, folder: str) -> None:
    with join_group(rank) as process:
        steps = train_steps(build(config, process))
        Path(folder, f"{rank}.json").write_text(json.dumps(steps))


@pytest.mark.parametrize(
    "others",
    [
        ("parallel.strategy=ddp", "model_name=phyclip", "model.factor_dim=8"),
        *(
            pytest.param(settings, marks=pytest.mark.rest)
            for settings in (
                ("parallel.strategy=ddp", "micro_batch_size=3", "checkpoint_activations=true"),
                ("parallel.strategy=fsdp",),
                ("parallel.strategy=fsdp", "parallel.shard_group=1"),
                ("parallel.strategy=fsdp", "micro_batch_size=3", "checkpoint_activations=true"),
                UNEQUAL_BOXES,
            )
        ),
    ],
    ids=[
        "ddp",
        "ddp in micro-batches",
        "fsdp",
        "hsdp",
        "fsdp in micro-batches",
        "fsdp in micro-batches of unequal boxes",
    ],
)
def test_two_processes_have_the_losses_of_one_on_the_full_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int, others: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TEST_PORT", str(free_port))
    write_data(tmp_path / "run")
    config = small_config(tmp_path / "run", *others)
    start(one_of_two, config, str(tmp_path))
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    torch.set_num_threads(1)
    one_process = train_steps(build(config, Process(device=torch.device("cpu"))))
    for step, ((found, _), (expected, _)) in enumerate(zip(ranks[0], one_process, strict=True)):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert found[key] == pytest.approx(value, rel=2e-4, abs=1e-6), (step, key)
    assert one_process[0][0]["loss/total"] != one_process[2][0]["loss/total"]
    if others == UNEQUAL_BOXES:
        n_micro_batches = [[math.ceil(n_images / 3) for _, n_images in steps] for steps in ranks]
        assert n_micro_batches[0] != n_micro_batches[1]


def wrap_convolution(rank: int, folder: str) -> None:
    with join_group(rank) as process:
        network: Any = nn.Conv2d(3, 4, 3)
        distribute(network, [], ParallelConfig(), process)
        is_channels_last = network.weight.is_contiguous(memory_format=torch.channels_last)
    Path(folder, f"{rank}.txt").write_text(str(is_channels_last))


def test_ddp_makes_convolutions_channels_last_like_their_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("TEST_PORT", str(free_port))
    start(wrap_convolution, str(tmp_path))
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


def test_each_process_selects_its_gpu_and_marks_work_on_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Event:
        record = staticmethod(calls.append)

    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 4,
        "set_device": calls.append,
        "Event": Event,
        "current_stream": lambda device=None: f"stream of {device}",
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    with process_group("cuda:1", 60) as process:
        mark_queued(process.device)
    assert calls == [torch.device("cuda:1"), "stream of cuda:1"]
    monkeypatch.setattr(dist, "is_initialized", lambda: True)  # as in a worker of Ray Train
    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    with process_group("cuda:3", 60) as process:
        assert process == Process(device=torch.device("cuda:3"), rank=3, world_size=4)
    assert calls[2:] == [torch.device("cuda:3")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_does_not_exist_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(UserError, match="device=cuda"):
        pick_device("cuda")
    assert pick_device("auto") == torch.device("cpu")


def compile_under_ddp(rank: int, folder: str) -> None:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["TEST_PORT"])
    graphs: list[int] = []
    with process_group("cpu", PATIENCE_S) as process, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        network = nn.Sequential(nn.Linear(800, 800), nn.Linear(800, 800))  # two buckets: the first holds 1 MB

        def count(graph: Any, inputs: Any) -> Any:
            graphs.append(len(inputs))
            return graph.forward

        block: Any = network.forward
        network.forward = torch.compile(block, backend=count)  # type: ignore[method-assign]
        distribute(network, [], ParallelConfig(), process)(torch.ones(2, 800)).sum().backward()
    messages = [str(item.message) for item in caught if "broadcast_buffers" in str(item.message)]
    Path(folder, "found.json").write_text(json.dumps([len(graphs), messages]))


@pytest.mark.rest
def test_ddp_does_not_cut_compiled_blocks_and_does_not_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("TEST_PORT", str(free_port))
    torch.multiprocessing.start_processes(compile_under_ddp, args=(str(tmp_path),), nprocs=1, start_method="fork")
    assert json.loads((tmp_path / "found.json").read_text()) == [1, []]
