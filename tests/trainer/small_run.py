"""A run that takes seconds: a small model on batches made up in memory. `python -m tests.trainer.small_run OUTPUT key=value ...`

Kills itself without warning after the step that KILL_AFTER names: a fault that no handler sees.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests.trainer.memory_loader import MemoryLoader
from trainer import build, loop, train
from trainer.config import TrainConfig, load_config

SMALL = (
    "model_name=hycoclip",
    "batch=8",
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
    return load_config(None, overrides(output, *others))


def main(output: Path, *others: str) -> int:
    torch.set_num_threads(1)
    kill_after = int(os.environ.get("KILL_AFTER", "0"))
    real = loop.update

    def update(run: Any, *arguments: Any, **named: Any) -> dict[str, float]:
        values = real(run, *arguments, **named)
        if run.step == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return values

    with patch.object(build, "Loader", MemoryLoader), patch.object(loop, "update", update):
        return train.main(overrides(output, *others))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
