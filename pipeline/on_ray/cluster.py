"""The nodes of the cluster, and requests that none of them can meet."""

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import ray

logger = logging.getLogger("hypergrit")

POLL_S: Final = 2.0
WARN_S: Final = 60.0

Resources = Mapping[str, float]


class Cluster:
    """The live nodes, looked up every POLL_S seconds: nodes join and leave while the job runs."""

    def __init__(self) -> None:
        self._nodes: dict[str, Resources] = {}
        self._polled = self._warned = float("-inf")

    def poll(self, now: bool = False) -> bool:
        """Look up the nodes if it is time, or `now`; return True if it was done."""
        if not now and time.monotonic() - self._polled < POLL_S:
            return False
        self._nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        self._polled = time.monotonic()
        return True

    def is_alive(self, node: str) -> bool:
        """Return True if the node was alive at the last poll."""
        return node in self._nodes

    def others_fit(self, request: Resources, refused: Collection[str]) -> bool:
        """Return True if an empty node that is not among the refused ones could meet the request."""
        return any(fits(request, resources) for node, resources in self._nodes.items() if node not in refused)

    def total(self, resource: str) -> float:
        """Return the amount of a resource in the cluster, used or not."""
        return sum(node.get(resource, 0.0) for node in self._nodes.values())

    def free(self) -> str:
        """Describe the unused resources of the cluster: `0.5 CPU and 1 GPU`."""
        free = ray.available_resources()
        return text({name: free.get(name, 0.0) for name in ("CPU", "GPU")})

    def warn(self, requests: Iterable[Resources]) -> None:
        """Log requests that no node can meet, once a minute: an autoscaler may add such a node, or never."""
        unmet = [request for request in requests if not any(fits(request, node) for node in self._nodes.values())]
        if unmet and time.monotonic() - self._warned >= WARN_S:
            largest = max(self._nodes.values(), key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)), default={})
            logger.warning(
                "no node of the cluster has %s; the largest has %s. The job waits for one that does; "
                "or lower ray.gpus_per_model_worker",
                " or ".join(sorted({text(request) for request in unmet})),
                text({name: largest.get(name, 0) for name in ("CPU", "GPU")}),
            )
            self._warned = time.monotonic()


def fits(request: Resources, node: Resources) -> bool:
    """Return True if an empty node could meet the request."""
    return all(node.get(name, 0.0) >= amount for name, amount in request.items())


def text(resources: Resources) -> str:
    """Format resources: `0.5 CPU and 1 GPU`."""
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items() if amount) or "neither CPUs nor GPUs"
