"""Build the index of the shards on one rank, and share it with the others: the ranks of a machine read one file."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.distributed as dist

from hypergrit_common.errors import UserError
from hypergrit_common.locations import Locations
from hypergrit_common.processes import machine
from hypergrit_common.shards import list_shards
from trainer.data.index import IndexFacts, Places, SampleIndex
from trainer.data.indexing import index_with_versions
from trainer.data.listing import ShardVersion
from trainer.distributed.gather import all_ranks, on_rank_0, rank, world_size

CHUNK: Final = 1 << 23  # samples that are sent at once


def build_shared_index(
    shards: Locations,
    folder: str,
    needs: frozenset[str] | None,
    list_urls: Callable[[Locations], list[str]] = list_shards,
) -> tuple[SampleIndex, list[ShardVersion]]:
    """List and index `shards` on rank 0 alone, as `list_urls` and `build_index` do, and share the index.

    The versions of the shards stay on rank 0: the list is empty on the others. Raises UserError on all ranks if rank 0
    fails. Collective.
    """
    built = on_rank_0(lambda: index_with_versions(list_urls(shards), folder, True, needs))
    index, versions = built or (None, [])
    return share(index), versions


def share(index: SampleIndex | None) -> SampleIndex:
    """Return the index of rank 0; the others pass None. Collective, on the host.

    The places of the samples are sent to one rank of each other machine. Raises UserError on all ranks if one of them
    cannot store them.
    """
    if index is not None and world_size() == 1:
        return index
    sent: list[IndexFacts | None] = [index.facts if index else None]
    dist.broadcast_object_list(sent, src=0, device=torch.device("cpu"))
    facts = sent[0]
    assert facts is not None
    machines = all_ranks(machine() if Path("/proc/self/fd").is_dir() else str(rank()))
    if machines[rank()] != machines[0]:
        facts = facts.on_another_machine()
    leaders = [machines.index(name) for name in dict.fromkeys(machines)]  # the first rank of each machine
    leader = machines.index(machines[rank()])
    places = index.places if index else None
    if len(leaders) > 1:
        group = dist.new_group(leaders, backend="gloo")
        problem = ""
        if isinstance(group, dist.ProcessGroup):  # another value for ranks outside the group
            places, problem = send_places(places, sum(facts.counts), group)
        if message := next((text for text in all_ranks(problem) if text), ""):
            raise UserError(message)
    paths = all_ranks(places.path if places else "")
    if places is None:
        places = Places.of_process(paths[leader])
    all_ranks(rank())  # a file stays open until all have opened it
    return index or SampleIndex.from_parts(facts, places)


def send_places(places: Places | None, n: int, group: dist.ProcessGroup) -> tuple[Places | None, str]:
    """Send the places of n samples from rank 0 to the others of the group, which pass None and receive them.

    Returns them, and the message of a rank that cannot store them. Collective in the group.
    """
    received, problem = places, ""
    for first in range(0, n, CHUNK):
        rows = places.read(first, min(CHUNK, n - first)).copy() if places else None
        values = np.empty((min(CHUNK, n - first), 2), np.uint32) if rows is None else rows
        dist.broadcast(torch.from_numpy(values.view(np.int32)), src=0, group=group)
        if places or problem:
            continue
        try:
            received = received or Places()
            received.append(values)
        except UserError as error:
            problem = str(error)
    return received, problem
