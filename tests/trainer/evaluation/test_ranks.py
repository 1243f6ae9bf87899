"""The embedder under two processes: both receive the features and errors of all items."""

from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from tests.trainer.distributed.test_precision import join_group, start
from tests.trainer.evaluation.tasks.embedding import model_and_tokenizer
from trainer.evaluation.embedder import CachedEmbedder
from trainer.evaluation.task import ImageSource


def embed(folder: Path, name: str) -> None:
    """Embed five images, of which the last one is missing, and four texts, and save what comes back."""
    embedder = CachedEmbedder(*model_and_tokenizer("meru"), folder / name)
    found = embedder.images([ImageSource(path=folder / f"{i}.png") for i in range(5)])
    texts = embedder.texts(["a", "b", "c", "a"])
    torch.save({"images": found.features, "errors": dict(found.errors), "texts": texts}, folder / f"{name}.pt")


def embed_in_rank(rank: int, folder: Path) -> None:
    with join_group(rank):
        embed(folder, f"rank{rank}")


@pytest.mark.rest
def test_ranks_share_the_embedding_and_receive_everything(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_PORT", str(free_port))
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 255, (20, 20, 3)).astype(np.uint8)
        PIL.Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    start(embed_in_rank, tmp_path)
    embed(tmp_path, "single")
    expected, *ranks = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("single", "rank0", "rank1"))
    assert set(expected["errors"]) == {4}
    for found in ranks:
        assert found["errors"] == expected["errors"]
        torch.testing.assert_close(found["images"], expected["images"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found["texts"], expected["texts"], rtol=1e-4, atol=1e-5)
