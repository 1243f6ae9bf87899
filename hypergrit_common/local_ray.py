"""Start Ray on this machine, or join a cluster.

A Ray that we start listens on loopback only, and its processes end with the driver. A cluster is asked before it is
joined: ray.init tries a dead one for 13 minutes, and obeys no signal meanwhile.
"""

import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
import ray
from ray._common.network_utils import build_address, parse_address
from ray._private import ray_constants, ray_logging, services
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray._private.grpc_utils import init_grpc_channel
from ray._private.utils import get_ray_address_file
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

from hypergrit_common.cli import sigterm_handler_kept
from hypergrit_common.errors import UserError
from hypergrit_common.processes import clean_up_after_this_process, descendants
from hypergrit_common.text import one_line

RAY_FOLDER: Final = "ray"
"""Ray's folder in the private one."""
TOKEN_LOGGER: Final = "ray._private.authentication.authentication_token_setup"


PORT: Final = 6379
"""The port of a head by default."""
PATIENCE_S: Final = 10.0
"""Time in which a cluster must answer."""
START: Final = "start one with ray start --head, correct the address, or unset it to start Ray on this machine"
NO_TOKEN: Final = "it requires a token, and this process has none or another one"
TOKEN: Final = "copy ~/.ray/auth_token from the machine of the head, and export RAY_AUTH_MODE=token"

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

    None is the cluster that RAY_ADDRESS names, and without it Ray on this machine.

    That Ray has a folder of its own, which no other user of the machine can open and which goes with this process:
    Ray's default, /tmp/ray, is open to all. A runtime environment among the options is joined with that of a submitted
    job, also if both set the same variable. Raises UserError if the cluster cannot be joined, or Ray does not start. The
    caller ends with ray.shutdown().
    """
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
    named, source = address or None, "ray.address"
    if named in (None, "auto") and (variable := os.environ.get("RAY_ADDRESS")):
        named, source = variable, "the environment variable RAY_ADDRESS"
    if named not in (None, "local"):
        try:
            joined = check_cluster(named)
            with sigterm_handler_kept():
                ray.init(address=joined, **options)
        except (ClusterError, OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            reason, fix = explain(error)
            where = f"{named!r}{getattr(error, 'where', '')}"
            raise UserError(
                f"the Ray cluster at {where}, which {source} names, cannot be joined: {reason}; {fix}"
            ) from None
        return
    logging.getLogger(TOKEN_LOGGER).addFilter(is_no_token_notice)
    before = descendants(os.getpid())
    # Ray opens its own folder to all, so that it lies in one that is private.
    folder = tempfile.mkdtemp(prefix="hg-", dir="/tmp" if os.access("/tmp", os.W_OK) else None)
    try:
        with sigterm_handler_kept(), loopback_only():
            ray.init(address="local", _temp_dir=os.path.join(folder, RAY_FOLDER), **(LOCAL_OPTIONS | options))
    except Exception as error:  # a plain one if a process of Ray does not start in time
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(
            f"Ray cannot start on this machine: {one_line(error)}; if time ran out, try again on idle cores"
        ) from error
    # Ray's own processes end when the driver is killed, except the two agents of the raylet.
    if sys.platform == "linux":
        started = descendants(os.getpid())
        clean_up_after_this_process({pid: start for pid, start in started.items() if pid not in before}, folder)


class ClusterError(Exception):
    """A cluster cannot be joined: what is wrong, what to do, and how the address was found if `auto` stands for it."""

    def __init__(self, reason: str, fix: str = START, where: str = "") -> None:
        super().__init__(reason)
        self.fix, self.where = fix, where


def explain(error: Exception) -> tuple[str, str]:
    """Return what is wrong with a cluster, in one line, and what to do."""
    text = one_line(error)
    if isinstance(error, ray.exceptions.AuthenticationError):
        return NO_TOKEN, TOKEN
    if text.startswith("Version mismatch"):
        return text, "install the cluster's versions of Ray and Python here, or ours there"
    return text, error.fix if isinstance(error, ClusterError) else START


def check_cluster(named: str) -> str:
    """Ask the cluster that a setting or a variable names, and return its address; a signal ends the wait.

    Raises ClusterError, and Ray's errors.
    """
    scheme, mark, rest = named.partition("://")
    if mark:
        what = {"ray": "Ray Client, whose drivers run elsewhere", "http": "a dashboard", "https": "a dashboard"}
        head = f"{rest.partition('/')[0].partition(':')[0] or 'HOST'}:{PORT}"
        submit = f", or submit the command: ray job submit --address {named} -- COMMAND" if "http" in scheme else ""
        raise ClusterError(
            f"this is the address of {what.get(scheme, 'no cluster')}",
            f"give that of the head, such as {head}, on a machine of the cluster{submit}",
        )
    address, where = named, ""
    if named == "auto":
        file, in_file = get_ray_address_file(None), services.find_bootstrap_address(None)
        if not services.find_gcs_addresses() and not in_file:
            raise ClusterError(f"no Ray runs on this machine, and there is no {file}")
        address = services.get_ray_address_from_environment("auto", None)
        where = f" ({address}, from {file if address == in_file else 'a process of this machine'})"
    host, port = parse_address(address) or ("", "")
    if not (host and port.isdecimal() and int(port) < 1 << 16):
        raise ClusterError("it has no port, or is no address", f"write it as HOST:PORT, such as HOST:{PORT}", where)
    failures: list[Exception] = []

    def ask() -> None:
        try:
            ask_head(host, int(port), named == "auto")
        except Exception as error:
            failures.append(error)

    # Look-ups of names, and parts of Ray, do not return for a signal; a wait for a thread does.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        raise ClusterError(f"no answer within {PATIENCE_S:.0f} s", START, where)
    if failures:
        reason, fix = explain(failures[0])
        raise ClusterError(reason, fix, where)
    return address


def call_head(channel: grpc.Channel) -> Any:
    """Ask a head whether it lives; return None, or the grpc.RpcError."""
    request = gcs_service_pb2.CheckAliveRequest()  # type: ignore[attr-defined]  # generated
    try:
        with channel:
            gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel).CheckAlive(request, timeout=0.2 * PATIENCE_S)
    except grpc.RpcError as error:
        return error
    return None


def ask_head(host: str, port: int, is_auto: bool) -> None:
    """Ask the head whether it lives, and for a node on this machine, which a driver needs."""
    host = services.resolve_ip_for_localhost(host)
    address = build_address(host, port)
    end_s = time.monotonic() + 0.7 * PATIENCE_S
    try:
        socket.create_connection((host, port), 0.4 * PATIENCE_S).close()
    except OSError as error:
        raise ClusterError(f"{address}: {one_line(error)}") from error
    failure = call_head(grpc.insecure_channel(address))
    if is_auto and failure is not None and failure.code() is grpc.StatusCode.UNAUTHENTICATED:
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)  # as ray.init does for `auto`
    if is_token_auth_enabled() and failure is None:  # workers would wait for each other without end
        raise ClusterError("it requires no token, but RAY_AUTH_MODE=token is set", "export RAY_AUTH_MODE=disabled")
    if failure is not None and (is_token_auth_enabled() or "RAY_USE_TLS" in os.environ):
        failure = call_head(init_grpc_channel(address))
    if failure is not None:
        if failure.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise ClusterError(NO_TOKEN, TOKEN)
        what = f"{failure.code().name}: {failure.details()}"
        raise ClusterError(f"what listens there does not answer as the head of a cluster ({what})")
    try:
        client = ray._raylet.GcsClient(address=address)  # type: ignore[attr-defined]
        services.get_node_to_connect_for_driver(client, timeout_seconds=max(1, int(end_s - time.monotonic())))
    except RuntimeError as error:
        fix = f"run the command on a machine of the cluster, or join this one: ray start --address={address}"
        raise ClusterError("no node of the cluster is on this machine", fix) from error


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
