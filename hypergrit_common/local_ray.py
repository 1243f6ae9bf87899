"""Ray on this machine: it listens on loopback only, and its processes end with the driver."""

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import ray
from ray._private import ray_constants, ray_logging

from hypergrit_common.cli import sigterm_handler_kept
from hypergrit_common.processes import clean_up_after_this_process, descendants

RAY_FOLDER: Final = "ray"
"""Ray's folder in the private one."""
TOKEN_LOGGER: Final = "ray._private.authentication.authentication_token_setup"


LOCAL_OPTIONS: Final[dict[str, Any]] = {
    "include_dashboard": False,
    "_system_config": {"idle_worker_killing_time_threshold_ms": 600_000},
}
"""Options of a Ray that we start.

By default, Ray ends a worker that is idle for a second if there are more of them than free CPUs, as with tasks and
actors of half a CPU. A worker of this project takes seconds to import its packages and to load spaCy's model.
"""


def is_no_token_notice(record: logging.LogRecord) -> bool:
    """Return False for the message that this Ray asks for a token, as it does by default; users need do nothing."""
    return not record.getMessage().startswith("Token authentication is enabled")


def init_ray(address: str | None, **options: Any) -> None:
    """Join the cluster at `address`, or start Ray on this machine for "local"; `options` are those of ray.init.

    That Ray has a folder of its own, which no other user of the machine can open and which goes with this process:
    Ray's default, /tmp/ray, is open to all. A runtime environment among the options is joined with that of a submitted
    job, also if both set the same variable. Raises ConnectionError if there is no cluster at `address`. The caller ends
    with ray.shutdown().
    """
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
    if address != "local":
        with sigterm_handler_kept():
            ray.init(address=address, **options)
        return
    logging.getLogger(TOKEN_LOGGER).addFilter(is_no_token_notice)
    before = descendants(os.getpid())
    # Ray opens its own folder to all, so that it lies in one that is private.
    folder = tempfile.mkdtemp(prefix="hg-", dir="/tmp" if os.access("/tmp", os.W_OK) else None)
    with sigterm_handler_kept(), loopback_only():
        ray.init(address="local", _temp_dir=os.path.join(folder, RAY_FOLDER), **(LOCAL_OPTIONS | options))
    # Ray's own processes end when the driver is killed, except the two agents of the raylet.
    if sys.platform == "linux":
        started = descendants(os.getpid())
        clean_up_after_this_process({pid: start for pid, start in started.items() if pid not in before}, folder)


def divert_worker_lines() -> str:
    """Write what Ray prints of its workers to a new file from now on, in place of this terminal; return its path."""
    descriptor, path = tempfile.mkstemp(prefix="hypergrit-ray-", suffix=".log")
    file = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="replace")

    def write(batch: dict[str, Any]) -> None:
        who = batch.get("actor_name") or batch.get("task_name") or "worker"
        file.writelines(f"({who} pid={batch.get('pid')}, ip={batch.get('ip')}) {line}\n" for line in batch["lines"])

    ray_logging.global_worker_stdstream_dispatcher.remove_handler("ray_print_logs")
    ray_logging.global_worker_stdstream_dispatcher.add_handler("ray_print_logs", write)
    return path


def python_path(root: str) -> str:
    """Return the PYTHONPATH of workers, which import the checkout at `root` first, then what this process does."""
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))


@contextmanager
def loopback_only() -> Iterator[None]:
    """Let Ray take 127.0.0.1 as the address of this machine, as it does on macOS: no other machine can connect.

    ray.init replaces a loopback address given as `_node_ip_address`, and reads the environment variable for this switch
    only when Ray is imported.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
