"""Number formats of what processes exchange in half precision, and what DDP does not need to exchange."""

import json
import os
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.patience import PATIENCE_S
from tests.trainer.small_run import small_config, write_data
from trainer.config import TrainConfig
from trainer.distributed.config import ParallelConfig
from trainer.distributed.gather import counts_of_ranks
from trainer.distributed.process import block_policy, distribute, process_group
from trainer.training.build import build
from trainer.training.step import BatchCopies, PendingStep, start_step

RECORDED = (
    *("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"),
    *("all_gather", "all_gather_object", "gather_object", "broadcast", "barrier"),
)


def start(function: Any, *arguments: Any) -> None:
    """Run `function(rank, ...)` in two processes, forked because importing torch again would take seconds."""
    torch.multiprocessing.start_processes(function, args=arguments, nprocs=2, start_method="fork")


def join_group(rank: int) -> Any:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["TEST_PORT"])
    torch.set_num_threads(1)
    return process_group("cpu", PATIENCE_S)


def four_steps(rank: int, config: TrainConfig, folder: str) -> None:
    """Do four steps, as the loop does on a GPU, and write the collectives of the last two: name -> dtype of each call."""
    torch._dynamo.config.optimize_ddp = True  # whatever tests before it have built
    with join_group(rank) as process:
        run = build(config, process)
        copies, queue = BatchCopies(run.loader, run.process.device), deque[PendingStep]()
        sent: dict[str, list[str]] = {name: [] for name in RECORDED}

        def recorded(name: str) -> Any:
            real = getattr(dist, name)

            def call(*values: Any, **named: Any) -> Any:
                tensors = [value for value in (*values, *named.values()) if isinstance(value, torch.Tensor)]
                sent[name].append(str(tensors[-1].dtype).removeprefix("torch.") if tensors else "object")
                return real(*values, **named)

            return call

        for number in range(4):
            if number == 2:
                for name in RECORDED:
                    setattr(dist, name, recorded(name))
            batch = copies.take()
            assert bool(batch.owned) == (config.model_name == "uncha")
            assert torch._dynamo.config.optimize_ddp == (config.parallel.strategy == "fsdp")  # DDP leaves graphs whole
            if batch.owned:
                own = {name: counts[rank] for name, counts in batch.counts.items()}
                assert own == batch.owned
            queue.append(start_step(run, batch))
            copies.start()
            if number:  # the values of a step are read once the next one is queued
                queue[0].read()
                copies.note(queue.popleft().announced())
    Path(folder, f"{rank}.json").write_text(json.dumps(sent))


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("hycoclip", "ddp"),
        pytest.param("hycoclip", "fsdp", marks=pytest.mark.rest),
        pytest.param("uncha", "ddp", marks=pytest.mark.rest),
    ],
)
def test_a_step_gathers_features_in_float32_in_one_message_and_its_host_exchanges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int, name: str, strategy: str
) -> None:
    monkeypatch.setenv("TEST_PORT", str(free_port))
    write_data(tmp_path / "run")
    boxes = ["data.boxes=all"] if name == "uncha" else []
    overrides = [
        f"model_name={name}",
        "precision=bf16",
        f"parallel.strategy={strategy}",
        "optim.warmup_steps=0",
        *boxes,
    ]
    config = small_config(tmp_path / "run", *overrides)
    start(four_steps, config, str(tmp_path))
    sent = json.loads((tmp_path / "0.json").read_text())
    assert sent["all_gather_into_tensor"] == ["float32"] * 2  # features of all streams; FSDP has functions of its own
    assert sent["reduce_scatter_tensor"] == ["float32"] * 2  # their gradients
    # The values of the step and the numbers of boxes of the batch after the next; FSDP's scalars, whose gradients it leaves.
    assert sent["all_reduce"] == ["float32"] * (2 if strategy == "ddp" else 4)
    assert not any(sent[name] for name in RECORDED[3:])  # the host exchanges nothing


def test_fsdp_gathers_weights_in_half_precision_on_a_gpu_and_sums_gradients_in_float32() -> None:
    policy = block_policy(torch.bfloat16, torch.device("cuda"))
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    assert not policy.cast_forward_inputs
    assert block_policy(torch.bfloat16, torch.device("cpu")).param_dtype == torch.float32


def wrap_networks(rank: int, folder: str) -> None:
    with join_group(rank) as process:
        plain = distribute(nn.Linear(2, 2), [], ParallelConfig(), process)
        normed = distribute(nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)), [], ParallelConfig(), process)
        counts = counts_of_ranks([rank + 3])[0]
        Path(folder, f"{rank}.json").write_text(json.dumps([plain.broadcast_buffers, normed.broadcast_buffers, counts]))


def test_ddp_sends_buffers_only_for_batch_norms_and_counts_are_exchanged_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("TEST_PORT", str(free_port))
    start(wrap_networks, str(tmp_path))
    assert json.loads((tmp_path / "1.json").read_text()) == [False, True, [3, 4]]
