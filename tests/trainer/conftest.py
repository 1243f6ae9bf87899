"""Fixtures of the trainer's tests."""

from pathlib import Path

import pytest

from hypergrit_common.processes import free_ports
from tests.trainer.small_run import run_forked


@pytest.fixture
def free_port() -> int:
    """A port of this machine on which nothing listens."""
    return free_ports(1)[0]


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a small run without faults, which tests do not change."""
    output = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert run_forked(output) == [0]
    return output
