"""Fixtures of the trainer's tests."""

import socket
from pathlib import Path

import pytest

from tests.trainer.small_run import run_forked


@pytest.fixture
def free_port() -> int:
    """A port of this machine on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a small run without faults, which tests do not change."""
    output = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert run_forked(output) == [0]
    return output
