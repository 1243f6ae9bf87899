"""Batches made up in memory, behind the API of `trainer.data.loader.Loader`: what the loop's tests train on."""

from collections.abc import Iterator
from typing import Any

import torch

from trainer.batch import Batch
from trainer.data.config import DataConfig
from trainer.text.tokenizer import Tokenizer


class MemoryLoader:
    """The global batch at a position depends on that position alone; each rank takes its rows. `shards` may name a poison:
    "nan@5" makes the sixth batch hold one image that is not finite."""

    n_samples = 1000

    def __init__(
        self,
        config: DataConfig,
        *,
        tokenizer: Tokenizer,
        size_px: int,
        batch: int,
        needs: frozenset[str],
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.size_px, self.batch, self.rank, self.world_size = size_px, batch, rank, world_size
        self.end = tokenizer.vocab_size - 1
        self.poisoned = int(config.shards.split("@")[1]) if "@" in config.shards else -1
        self.boxes = config.boxes
        self.position = 0
        self.counts: dict[str, int] = {"read": 0}

    def __iter__(self) -> Iterator[Batch]:
        while True:
            batch = self.make(self.position)
            self.position += 1
            yield batch

    def make(self, position: int) -> Batch:
        generator = torch.Generator().manual_seed(position)
        n = self.batch * self.world_size
        mine = slice(self.rank * self.batch, (self.rank + 1) * self.batch)

        def tokens(length: int) -> torch.Tensor:
            ids = torch.randint(1, self.end, (n, length), generator=generator)
            ids[:, -1] = self.end
            return ids[mine]

        def images() -> torch.Tensor:
            return torch.rand(n, 3, self.size_px, self.size_px, generator=generator)

        wholes, boxes, ids, box_ids = images(), images(), tokens(8), tokens(5)
        # Of "all" boxes the last rank's pairs have three each, the others' one.
        owner = torch.arange(n)[mine].repeat_interleave(torch.where(torch.arange(n)[mine] >= n - n // 2, 3, 1))
        owner = owner - mine.start if self.boxes == "all" else torch.arange(self.batch)
        if position == self.poisoned:
            wholes[3] = float("nan")
        return Batch(
            images=wholes[mine],
            token_ids=ids,
            box_images=boxes[mine][owner],
            box_token_ids=box_ids[owner],
            box_owner=owner if self.boxes == "all" else None,
            keys=tuple(f"sample-{position}-{i}" for i in range(n))[mine],
        )

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]

    def close(self) -> None:
        pass
