"""Ray clusters that cannot be joined: one line that names the address, where it came from and the fix, soon."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import ray
from ray._private import services

from hypergrit_common import local_ray
from hypergrit_common.errors import UserError
from hypergrit_common.local_ray import NO_TOKEN, TOKEN, init_ray

SERVICE = "ray.rpc.NodeInfoGcsService"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable, no process and no file of a cluster, and no change of 127.0.0.1 to an outer address."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(services, "find_gcs_addresses", frozenset)
    monkeypatch.setattr(services, "resolve_ip_for_localhost", lambda host: host)
    monkeypatch.setattr(local_ray, "is_token_auth_enabled", lambda: False)
    monkeypatch.setattr(local_ray, "PATIENCE_S", 2.0)


def refusal(address: str | None) -> str:
    """The message of the UserError."""
    with pytest.raises(UserError) as caught:
        init_ray(address)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@contextmanager
def head(code: grpc.StatusCode | None) -> Iterator[str]:
    """Something that answers as a head, with an error unless `code` is None; yields its address."""

    def answer(_: bytes, context: Any) -> bytes:
        if code is not None:
            context.abort(code, "no\nentry")
        return b""

    handler = grpc.method_handlers_generic_handler(SERVICE, {"CheckAlive": grpc.unary_unary_rpc_method_handler(answer)})
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://127.0.0.1:8265", "a dashboard; give that of the head, such as 127.0.0.1:6379"),
        ("https://ray.test/x", "ray job submit --address https://ray.test/x -- COMMAND"),
        ("ray://h.test:10001", "Ray Client, whose drivers run elsewhere; give that of the head, such as h.test:6379"),
        ("spark://", "no cluster; give that of the head, such as HOST:6379"),
        ("localhost", "it has no port"),
        ("h.test:", "it has no port"),
        ("h.test:six", "it has no port"),
        ("h.test:99999", "it has no port"),
        ("::1", "it has no port"),
        ("name.invalid:6379", "name.invalid:6379: [Errno"),
    ],
)
def test_an_address_of_no_head_is_refused_with_its_fix(address: str, expected: str) -> None:
    message = refusal(address)
    assert message.startswith(f"the Ray cluster at {address!r}, which ray.address names, cannot be joined: ")
    assert expected in message


@pytest.mark.parametrize("address", [None, "auto"])
def test_a_dead_cluster_of_the_variable_names_the_variable(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    message = refusal(address)
    assert message.startswith(
        f"the Ray cluster at '127.0.0.1:{port}', which the environment variable RAY_ADDRESS names"
    )
    assert "Connection refused; start one with ray start --head" in message


def test_auto_names_the_file_of_a_dead_cluster_and_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "ray" / "ray_current_cluster"
    assert f"no Ray runs on this machine, and there is no {file}" in refusal("auto")
    file.parent.mkdir()
    file.write_text("127.0.0.1:9")
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    message = refusal(None)
    assert f"at 'auto' (127.0.0.1:9, from {file}), which the environment variable RAY_ADDRESS names" in message


def test_what_answers_otherwise_than_a_head_is_named() -> None:
    with head(grpc.StatusCode.UNIMPLEMENTED) as address:
        assert "does not answer as the head of a cluster (UNIMPLEMENTED: no entry)" in refusal(address)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "does not answer as the head of a cluster" in refusal(f"127.0.0.1:{silent.getsockname()[1]}")


def test_a_token_that_is_missing_wrong_or_needless_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with head(grpc.StatusCode.UNAUTHENTICATED) as address:
        assert refusal(address).endswith(f"{NO_TOKEN}; {TOKEN}")
    with head(None) as address:
        monkeypatch.setattr(local_ray, "is_token_auth_enabled", lambda: True)
        assert refusal(address).endswith("RAY_AUTH_MODE=token is set; export RAY_AUTH_MODE=disabled")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.61.0\n"),
            "Ray: 2.61.0; install the",
        ),
        (ray.exceptions.AuthenticationError("token\nno"), f"{NO_TOKEN}; {TOKEN}"),
        (ConnectionError("gone"), "gone; start one"),
        (ValueError("odd"), "odd; start one"),
    ],
)
def test_errors_of_ray_are_one_line(error: Exception, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> None:
        raise error

    monkeypatch.setattr(local_ray, "check_cluster", lambda named: named)
    monkeypatch.setattr(ray, "init", fail)
    assert expected in refusal("h.test:6379")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_for_a_cluster(signum: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_ray, "PATIENCE_S", 100.0)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signum, interrupt)
    start = time.monotonic()
    try:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            threading.Timer(0.3, os.kill, (os.getpid(), signum)).start()
            with pytest.raises(KeyboardInterrupt):
                init_ray(f"127.0.0.1:{silent.getsockname()[1]}")
    finally:
        signal.signal(signum, before)
    assert time.monotonic() - start < 20  # the head would be asked for longer
