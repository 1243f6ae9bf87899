"""Follow the cluster: time limits, nodes that come and go, requests that none can meet."""

import logging
import time
from collections.abc import Sequence
from typing import Final

from pipeline import watch
from pipeline.on_ray.calls import Call
from pipeline.on_ray.cluster import Cluster, Resources
from pipeline.on_ray.failures import Failures
from pipeline.on_ray.models import Model, Models
from pipeline.on_ray.work import Work

logger = logging.getLogger("hypergrit")

RELEASE_S: Final = 5.0
"""Time without progress after which an idle model worker is released, so that tasks get its resources."""
STALL_S: Final = 300.0
"""Time without progress after which requests that wait for resources are logged and made again."""


class Upkeep:
    """Looks after the cluster between the calls of a job."""

    def __init__(self, work: Work, models: Models, cluster: Cluster, failures: Failures) -> None:
        self.work, self.models, self.cluster, self.failures = work, models, cluster, failures
        self.progressed = time.monotonic()

    def note_progress(self) -> None:
        """Note that a call has begun, gone on or ended."""
        self.progressed = time.monotonic()

    def look(self) -> None:
        """Judge deaths, stop calls that exceed their time limit, follow the nodes, report what no node can run."""
        self.failures.settle()
        if not self.cluster.poll():
            return
        busy = {id(call.model) for call in self.work.running.values() if call.model is not None and call.node}
        watch.models(len(self.models.ready), len(busy))
        self.models.settle(self.cluster)
        for model in self.models.idle_unusable(self.cluster):
            self.failures.discard(model)
        now = time.monotonic()
        for call in [call for call in self.work.running.values() if call.deadline < now]:
            if call.stream in self.work.running:
                self.failures.stop(call)
        for call in self._pending():
            if call.refused and not self.cluster.others_fit(call.resources, call.refused):
                self._withdraw(call)  # the nodes that it does not refuse have gone
        self.models.withdraw_refused(self.cluster)
        pending = self._pending()
        requests: list[Resources] = [call.resources for call in pending]
        if self.models.starting:
            requests.append(self.models.request(self.cluster))
        self.cluster.warn(requests)
        if time.monotonic() - self.progressed > STALL_S and requests and not self._is_computing():
            self._request_again(pending, requests)
        else:
            self._release_for(pending)

    def _pending(self) -> list[Call]:
        """Return the tasks that wait for resources."""
        return [call for call in self.work.running.values() if not call.node and call.model is None]

    def _is_computing(self) -> bool:
        return any(call.node for call in self.work.running.values())

    def _request_again(self, pending: Sequence[Call], requests: Sequence[Resources]) -> None:
        """Withdraw all requests that Ray has not met, to make them again: one that Ray lost would wait forever.

        Usually, another job uses the cluster, and the log line is what a user needs.
        """
        logger.warning(
            "no progress for %.0f s: %d requests wait for resources, and %s of the cluster are free",
            time.monotonic() - self.progressed,
            len(requests),
            self.cluster.free(),
        )
        for call in pending:
            self._withdraw(call)
        self.models.withdraw()
        self.note_progress()

    def _withdraw(self, call: Call) -> None:
        """Take back a request that has not begun; it is made again with what the cluster has now."""
        call.stop()
        self.work.end(call)
        self.work.tasks[call.shard.step].appendleft(call.shard)

    def _release_for(self, pending: Sequence[Call]) -> None:
        """End an idle model worker if tasks wait for resources and nothing runs that would free some."""
        is_stuck = time.monotonic() - self.progressed > RELEASE_S and not self._is_computing()
        idle: list[Model] = self.models.idle()
        if pending and is_stuck and idle:
            logger.info("an idle model worker is released, since tasks wait for CPUs")
            self.failures.discard(idle[0])
            self.note_progress()
