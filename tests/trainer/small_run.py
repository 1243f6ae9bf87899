"""Training runs of about a second: a small model on tiny shards, in this process or in forked ones."""

import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests.forks import start_process
from tests.trainer.data.samples import Files, train_files, write_shards
from trainer import train
from trainer.config import TrainConfig, load_config
from trainer.distributed.process import Process
from trainer.training import loop
from trainer.training.build import Training, build
from trainer.training.step import PendingStep

SMALL = (
    "model_name=hycoclip",
    "batch_size=8",
    "precision=fp32",
    "device=cpu",
    "steps=12",
    "lr=0.01",
    "optim.warmup_steps=2",
    "save.every=5",
    "log.every=1",
    "log.tensorboard=false",
    "model.image.size_px=16",
    "model.image.kwargs={embed_dim: 32, depth: 2, num_heads: 2, patch_size: 8}",
    "model.text.vocab_size=514",
    "model.text.context_length=8",
    "model.text.width=32",
    "model.text.layers=2",
    "model.text.heads=2",
    "model.embed_dim=16",
    "data.workers=0",
)
SAMPLES_PER_SHARD = (40, 24)

Fault = Callable[[], None]


def overrides(output: Path, *others: str) -> list[str]:
    """The command line of a small run. It reads the shards of `write_data`, unless `others` name different ones."""
    merges = output.parent / "merges.txt"
    if not merges.is_file():
        merges.write_text("#version: 0.2\n", encoding="utf-8")
    return [*SMALL, f"shards={output.parent / 'shards'}", f"output={output}", f"tokenizer={merges}", *others]


def small_config(output: Path, *others: str) -> TrainConfig:
    return load_config(overrides(output, *others))


def small_sample(number: int) -> Files:
    """A sample with four boxes if its number is divisible by three, else with one."""
    return train_files(number, n_boxes=1 if number % 3 else 4)


def write_data(output: Path) -> None:
    """Write the shards of the run in `output` beside it, unless they exist."""
    folder = output.parent / "shards"
    if not folder.is_dir():
        write_shards(folder, SAMPLES_PER_SHARD, small_sample)


def small_run(output: Path, *others: str, process: Process | None = None) -> Training:
    """The parts of a small run, before its first step; on the CPU, unless `process` has another device."""
    write_data(output)
    return build(small_config(output, *others), process or Process(device=torch.device("cpu")))


def run(output: Path, *others: str, at: int = 0, fault: Fault | None = None) -> int:
    """Run the command in this process and return its exit code. `fault` is called after step `at`."""
    write_data(output)
    return run_command(overrides(output, *others), at, fault)


def run_command(arguments: list[str], at: int = 0, fault: Fault | None = None) -> int:
    """Run the command with these arguments, as `run` does."""
    torch.set_num_threads(1)
    real_step = loop.start_step

    def start_step(*arguments: Any, **named: Any) -> PendingStep:
        step = real_step(*arguments, **named)
        if fault and step.number == at:
            fault()
        return step

    with patch.object(loop, "start_step", start_step):
        return train.main(arguments)


def kill() -> None:
    """Kill this process with SIGKILL, as if the machine had crashed: no handler runs."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_once_saved(output: Path, step: int) -> Fault:
    """Return a fault that kills its process once the checkpoint of `step`, which a thread writes, is complete."""

    def fault() -> None:
        while not (output / "checkpoints" / f"step_{step:08d}").is_dir():
            time.sleep(0.01)
        kill()

    return fault


def terminate() -> None:
    """Send this process the signal with which a scheduler ends a job."""
    os.kill(os.getpid(), signal.SIGTERM)


def fill_disk() -> None:
    """Make writes fail beyond the first 64 KiB of a file, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, resource.RLIM_INFINITY))


def run_forked(
    output: Path, *others: str, port: int = 0, faults: Sequence[Fault | None] = (None,), at: int = 0
) -> list[int]:
    """Run the command in one process per item of `faults`; return their exit codes (-9: killed).

    `faults` and `at` as in `run`. The stderr of each process goes to its `log_path`.
    """
    write_data(output)

    def work(rank: int, fault: Fault | None) -> None:
        if len(faults) > 1:
            os.environ.update(
                RANK=str(rank), WORLD_SIZE=str(len(faults)), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
            )
        os._exit(run(output, *others, at=at, fault=fault))

    children = [start_process(partial(work, *item), log_path(output, item[0])) for item in enumerate(faults)]
    for child in children:
        child.join()
    return [child.exitcode or 0 for child in children]


def log_path(output: Path, rank: int = 0) -> Path:
    """Path of the stderr of a process of `run_forked`: OUTPUT.RANK.log."""
    return output.with_name(f"{output.name}.{rank}.log")
