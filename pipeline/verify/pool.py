"""Check shards in child processes, so that a file that crashes a reader is a problem of its shard."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue
from typing import Final

from pipeline.rescue.child import Child, ProcessDiedError, RemoteError, StepTimeoutError
from pipeline.verify.finding import Finding
from pipeline.verify.shard import Checker
from pipeline.write.store import Store
from schemas.files import MANIFEST_FILE
from schemas.layout import Layout
from schemas.manifest import PlanJson

TIMEOUT_S: Final = 3600.0
"""Longest time for a shard."""


def check_shards(output: str, plans: Mapping[int, PlanJson | None], n_processes: int) -> Iterator[Finding]:
    """Check the shards in `plans`, index -> plan in the record of the job; yield findings in the order of completion.

    Raises UserError if the store does not answer.
    """
    idle = SimpleQueue[Child]()
    with ExitStack() as stack:
        for _ in range(min(n_processes, len(plans))):
            idle.put(stack.enter_context(Child(partial(Checker, output))))
        pool = ThreadPoolExecutor(n_processes)
        # Before the processes are killed, so that no thread starts another one.
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        layout = Store(output).layout
        tasks = [pool.submit(check_in, idle, index, plan, layout) for index, plan in plans.items()]
        for task in as_completed(tasks):
            yield task.result()


def check_in(idle: "SimpleQueue[Child]", index: int, plan: PlanJson | None, layout: Layout) -> Finding:
    """Check a shard in the next idle process."""
    child = idle.get()
    try:
        finding = child.call("check", index, plan, timeout_s=TIMEOUT_S)
        assert isinstance(finding, Finding)
        return finding
    except (ProcessDiedError, StepTimeoutError, RemoteError) as error:
        finding = Finding(index, layout=layout)
        finding.add(layout.path(MANIFEST_FILE, index), f"the shard cannot be checked: {error}")
        return finding
    finally:
        idle.put(child)
