"""Fixtures of all tests."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def autograd_before_compilers() -> None:
    """Start autograd before torch.compile registers its pseudo-devices.

    Otherwise autograd starts a thread for each of them, and tests that fork processes hang.
    """
    torch.ones(1, requires_grad=True).backward()


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the cached indexes of tars out of the user's cache folder."""
    folder = str(tmp_path_factory.mktemp("index"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.data.loader.default_folder", lambda: folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def forked_children() -> Iterator[None]:
    """Fork the child processes of jobs from one that has imported the packages."""
    from tests.pipeline.children import Forked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.faults.start_process", Forked)
        yield


@pytest.fixture
def computed_here() -> Iterator[None]:
    """Let jobs of the test compute their shards in its process."""
    from tests.pipeline.here import running_here

    with running_here():
        yield
