"""A run that takes a second: a small model on batches made up in memory, in this process or in forked ones."""

import contextlib
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests.trainer.memory_loader import MemoryLoader
from trainer import build, loop, train
from trainer.config import TrainConfig, load_config

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
    "shards=in/memory",
)


def overrides(output: Path, *others: str) -> list[str]:
    merges = output.parent / "merges.txt"
    if not merges.is_file():
        merges.write_text("#version: 0.2\n", encoding="utf-8")
    return [*SMALL, f"output={output}", f"tokenizer={merges}", *others]


def small_config(output: Path, *others: str) -> TrainConfig:
    return load_config(overrides(output, *others))


def run(output: Path, *others: str, at: int = 0, fault: Callable[[], None] | None = None) -> int:
    """The exit code of a run; `fault` strikes after the step `at`, without warning."""
    torch.set_num_threads(1)
    real = loop.update

    def update(*arguments: Any, **named: Any) -> dict[str, float]:
        values = real(*arguments, **named)
        if fault and arguments[0].step == at:
            fault()
        return values

    with patch.object(build, "Loader", MemoryLoader), patch.object(loop, "update", update):
        return train.main(overrides(output, *others))


def killed() -> None:
    """As by a machine that goes down: no handler sees it."""
    os.kill(os.getpid(), signal.SIGKILL)


def terminated() -> None:
    """As by a scheduler that wants the machine back."""
    os.kill(os.getpid(), signal.SIGTERM)


def disk_full() -> None:
    """No file can grow beyond 64 kB from here on."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, resource.RLIM_INFINITY))


def fork(
    output: Path, *others: str, port: int = 0, faults: Sequence[Callable[[], None] | None] = (None,), at: int = 0
) -> list[int]:
    """A run in as many processes as there are `faults`, one for each; returns their exit codes (-9: killed).

    What each one says goes to OUTPUT.RANK.log.
    """
    context = multiprocessing.get_context("fork")  # what takes long is importing torch

    def work(rank: int, fault: Callable[[], None] | None) -> None:
        if len(faults) > 1:
            os.environ.update(
                RANK=str(rank), WORLD_SIZE=str(len(faults)), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
            )
        with said(output, rank).open("w") as log, contextlib.redirect_stderr(log):
            code = run(output, *others, at=at, fault=fault)
        os._exit(code)

    children = [context.Process(target=work, args=item) for item in enumerate(faults)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return [child.exitcode or 0 for child in children]


def said(output: Path, rank: int = 0) -> Path:
    return output.with_name(f"{output.name}.{rank}.log")
