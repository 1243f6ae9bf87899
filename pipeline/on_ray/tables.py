"""The finished tables of shards in the object stores of the cluster, limited in bytes."""

from typing import Final

from pipeline.on_ray.cluster import Cluster
from pipeline.on_ray.groups import Shard

MEMORY_SHARE: Final = 0.5
"""Share of the object stores that prepared tables may take; the rest is for copies on their way, and for other jobs."""


class Tables:
    """Counts the bytes of the prepared tables that the driver holds."""

    def __init__(self) -> None:
        self.held, self.n_made, self.made = 0, 0, 0
        self._shards: dict[Shard, int] = {}

    def add(self, shard: Shard, nbytes: int) -> None:
        """Note the table of a shard."""
        self.drop(shard)
        self._shards[shard] = nbytes
        self.held += nbytes
        self.made += nbytes
        self.n_made += 1

    def drop(self, shard: Shard) -> None:
        """Note that the table of a shard is no longer needed, or lost."""
        self.held -= self._shards.pop(shard, 0)

    def has_room(self, n_coming: int, cluster: Cluster) -> bool:
        """Return True if another table fits besides those that are being made, whose size is taken to be the mean."""
        mean = self.made / self.n_made if self.n_made else 0
        coming = (n_coming + 1) * mean
        return not (self.held or n_coming) or self.held + coming <= MEMORY_SHARE * cluster.total("object_store_memory")
