"""Build the index of the shards on one rank, and send it to the others."""

import time
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from common.errors import UserError
from trainer.data.index import Index, ShardIndex
from trainer.data.indexing import finish_index, index_shards

BEAT_S: Final = 5.0
"""Seconds between signs of life of the rank that builds: the others wait for each with the time limit of the group."""
CHUNK: Final = 1 << 24
BUSY, DONE, FAILED = 0, 1, 2


def build_shared_index(urls: Sequence[str], folder: str, needs: frozenset[str] | None) -> Index:
    """Build the index like `build_index`, on rank 0 alone. Collective, if there is a process group of several ranks.

    Raises UserError on all ranks if it fails on rank 0.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return finish_index(index_shards(urls, folder, True, needs))
    if dist.get_rank():
        while (state := exchange(BUSY)) == BUSY:
            pass
        return receive(state)
    try:
        index = finish_index(with_signs_of_life(index_shards(urls, folder, True, needs)))
    except UserError as error:
        exchange(FAILED)
        dist.broadcast_object_list([str(error)], src=0, device=device())
        raise
    exchange(DONE)
    dist.broadcast_object_list([[(shard.url, shard.n_bytes, len(shard), shard.problem) for shard in index.shards]],
                               src=0, device=device())  # fmt: skip
    for name in ("starts", "sizes"):
        broadcast(np.concatenate([getattr(shard, name) for shard in index.shards]))
    return index


def with_signs_of_life(shards: Iterator[ShardIndex]) -> Iterator[ShardIndex]:
    """Yield `shards`, and tell the waiting ranks every few seconds that this one is at work."""
    last = time.monotonic()
    for shard in shards:
        yield shard
        if time.monotonic() - last > BEAT_S:
            exchange(BUSY)
            last = time.monotonic()


def receive(state: int) -> Index:
    """Return the index that rank 0 sends. Raises UserError if it could not build one."""
    content: list[object] = [None]
    dist.broadcast_object_list(content, src=0, device=device())
    if state == FAILED:
        raise UserError(str(content[0]))
    facts: list[tuple[str, int, int, str]] = content[0]  # type: ignore[assignment]
    counts = [n for _, _, n, _ in facts]
    starts, sizes = (np.split(broadcast(np.empty(sum(counts), np.uint32)), np.cumsum(counts)[:-1]) for _ in range(2))
    return Index(
        [ShardIndex(url, n_bytes, starts[i], sizes[i], problem) for i, (url, n_bytes, _, problem) in enumerate(facts)]
    )


def exchange(state: int) -> int:
    """Return the state of rank 0; the others pass BUSY. Collective."""
    value = torch.tensor(state, device=device())
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return int(value.item())


def broadcast(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Replace `values` by those of rank 0, in place, and return them. Collective."""
    for first in range(0, len(values), CHUNK):
        part = torch.from_numpy(values[first : first + CHUNK].view(np.int32))
        sent = part.to(device())
        dist.broadcast(sent, src=0)
        part.copy_(sent)
    return values


def device() -> torch.device:
    """Return the device of tensors that the process group exchanges: NCCL knows only those of a GPU."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
