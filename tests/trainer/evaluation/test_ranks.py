"""The embedder under two processes: both receive the features and errors of all items."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from tests.patience import PATIENCE_S

pytestmark = pytest.mark.rest

WORKER = """
import sys
from pathlib import Path
import torch
from tests.patience import PATIENCE_S
from tests.trainer.evaluation.tasks.embedding import model_and_tokenizer
from trainer.distributed.process import process_group
from trainer.evaluation.embedder import CachedEmbedder
from trainer.evaluation.task import ImageSource

folder = Path(sys.argv[1])
torch.set_num_threads(1)
with process_group("cpu", PATIENCE_S) as process:
    embedder = CachedEmbedder(*model_and_tokenizer("meru"), folder / f"cache{process.rank}")
    images = [ImageSource(path=folder / f"{i}.png") for i in range(5)]
    found = embedder.images(images)
    texts = embedder.texts(["a", "b", "c", "a"])
    torch.save({"images": found.features, "errors": dict(found.errors), "texts": texts},
               folder / f"{process.world_size}-{process.rank}.pt")
"""


def run(folder: Path, rank: int, world_size: int, port: int) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder)], env=environment)


def test_ranks_share_the_embedding_and_receive_everything(tmp_path: Path, free_port: int) -> None:
    for i in range(4):  # image 4 is missing
        pixels = np.random.default_rng(i).integers(0, 255, (20, 20, 3)).astype(np.uint8)
        PIL.Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    processes = [run(tmp_path, rank, 2, free_port) for rank in range(2)]
    assert [process.wait(PATIENCE_S) for process in processes] == [0, 0]
    single = run(tmp_path, 0, 1, free_port)
    assert single.wait(PATIENCE_S) == 0
    expected = torch.load(tmp_path / "1-0.pt", weights_only=True)
    assert set(expected["errors"]) == {4}
    for rank in range(2):
        found = torch.load(tmp_path / f"2-{rank}.pt", weights_only=True)
        assert found["errors"] == expected["errors"]
        torch.testing.assert_close(found["images"], expected["images"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found["texts"], expected["texts"], rtol=1e-4, atol=1e-5)
