"""Build the index of the shards on one rank, and send it to the others."""

from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from common.shards import list_shards
from trainer.data.index import Index, ShardIndex
from trainer.data.indexing import index_with_versions
from trainer.data.versions import ShardVersion
from trainer.distributed.gather import world_size
from trainer.distributed.rank_zero import on_rank_0

CHUNK: Final = 1 << 24


def build_shared_index(shards: str, folder: str, needs: frozenset[str] | None) -> tuple[Index, list[ShardVersion]]:
    """List and index `shards` on rank 0 alone, as `list_shards` and `build_index` do, and send the index to the others.

    The versions of the shards stay on rank 0: the list is empty on the others. Raises UserError on all ranks if rank 0
    fails. Collective.
    """
    built = on_rank_0(lambda: index_with_versions(list_shards(shards), folder, True, needs))
    index, versions = built or (None, [])
    return share(index), versions


def share(index: Index | None) -> Index:
    """Return the index of rank 0; the others pass None. Collective, on the host."""
    if index is not None and world_size() == 1:
        return index
    facts = [[(shard.url, shard.n_bytes, len(shard), shard.problem) for shard in index.shards] if index else []]
    dist.broadcast_object_list(facts, src=0, device=torch.device("cpu"))
    counts = [n for _, _, n, _ in facts[0]]
    starts, sizes = np.empty(sum(counts), np.uint32), np.empty(sum(counts), np.uint32)
    if index is not None:
        starts, sizes = (
            np.concatenate([getattr(shard, name) for shard in index.shards]) for name in ("starts", "sizes")
        )
    broadcast(starts)
    broadcast(sizes)
    if index is not None:
        return index
    ends = np.cumsum(counts)[:-1]
    parts = zip(facts[0], np.split(starts, ends), np.split(sizes, ends), strict=True)
    return Index([ShardIndex(url, n_bytes, first, size, problem) for (url, n_bytes, _, problem), first, size in parts])


def broadcast(values: NDArray[np.uint32]) -> None:
    """Replace `values` by those of rank 0, in place. Collective, on the host."""
    for first in range(0, len(values), CHUNK):
        dist.broadcast(torch.from_numpy(values[first : first + CHUNK].view(np.int32)), src=0)
