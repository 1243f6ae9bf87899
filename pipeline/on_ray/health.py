"""Nodes on which steps fail that succeed on others: their failures are theirs, and they get no calls for a while."""

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Literal

from pipeline.on_ray.cluster import Cluster, Resources
from pipeline.run import Step

logger = logging.getLogger("hypergrit")

Action = Step | Literal["load"]
"""A step, or the start of a model worker."""

MIN_SHARDS: Final = 2
"""Shards that have to fail on a node, with no success among them, before the node is blamed."""
AVOID_S: Final = 300.0
"""Time for which a node gets no calls of a step, unless no other node can run it."""
NODE_LABEL: Final = "ray.io/node-id"
"""Label that Ray gives to every node."""


@dataclass
class Streak:
    """The shards that have failed in a step on a node since the last success there, and the times of both."""

    shards: set[int] = field(default_factory=set)
    began: float = 0.0
    succeeded: float = float("-inf")
    avoided_until: float = float("-inf")

    def acquit(self, shard: int) -> None:
        """Forget the failure of a shard that has failed on another node too."""
        self.shards.discard(shard)
        if len(self.shards) < MIN_SHARDS:
            self.avoided_until = float("-inf")


class Health:
    """The failures of each step on each node."""

    def __init__(self) -> None:
        self._streaks: dict[tuple[str, Action], Streak] = {}

    def succeed(self, node: str, step: Action) -> None:
        """Note that a step has succeeded on a node."""
        self._streaks[node, step] = Streak(succeeded=time.monotonic())

    def fail(self, node: str, step: Step, shard: int, cluster: Cluster) -> bool:
        """Note that a step has failed on a node; return True if that is the fault of the node, not of the shard.

        It is if several shards have failed there since the last success, while the step succeeded on another live node
        on which it does not fail in the same way. A shard that fails on a second node is at fault itself.
        """
        others = [
            s for (name, of), s in self._streaks.items() if of == step and name != node and cluster.is_alive(name)
        ]
        failed_too = [other for other in others if shard in other.shards]
        if failed_too:
            for other in failed_too:
                other.acquit(shard)
            return False
        streak = self._streaks.setdefault((node, step), Streak())
        if not streak.shards:
            streak.began = time.monotonic()
        streak.shards.add(shard)
        is_to_blame = len(streak.shards) >= MIN_SHARDS and any(
            other.succeeded >= streak.began and len(other.shards) < MIN_SHARDS for other in others
        )
        if is_to_blame:
            self.avoid(node, step, f"{len(streak.shards)} shards failed there and none succeeded")
        return is_to_blame

    def avoid(self, node: str, step: Action, reason: str) -> None:
        """Send no calls of a step to a node for a while; log it once."""
        streak, now = self._streaks.setdefault((node, step), Streak()), time.monotonic()
        if streak.avoided_until < now:
            logger.warning("node %s gets no work for %.0f s in step %s: %s", node[:12], AVOID_S, step, reason)
            streak.avoided_until = now + AVOID_S

    def avoided(self, step: Action) -> set[str]:
        """Return the nodes that get no calls of a step now."""
        now = time.monotonic()
        return {node for (node, of), streak in self._streaks.items() if of == step and streak.avoided_until > now}

    def refused(self, step: Step, failed: Collection[str], request: Resources, cluster: Cluster) -> list[str]:
        """Return the nodes that a call shall not use: the avoided ones, and those where it has `failed`.

        It leaves out nodes that have to be used, because no other one has the resources of the request.
        """
        for nodes in (self.avoided(step) | set(failed), failed):
            refused = sorted(node for node in nodes if cluster.is_alive(node))
            if refused and cluster.others_fit(request, refused):
                return refused
        return []

    def selector(self, step: Step, failed: Collection[str], request: Resources, cluster: Cluster) -> dict[str, str]:
        """Return the label selector of a call that leaves out the `refused` nodes."""
        return selector_of(self.refused(step, failed, request, cluster))


def selector_of(refused: Collection[str]) -> dict[str, str]:
    """Return the label selector of all nodes but these."""
    return {NODE_LABEL: f"!in({','.join(refused)})"} if refused else {}
