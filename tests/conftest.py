"""Fixtures of all tests."""

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.forks import replaced

SHARED = ("ray_cluster", "chromium")
"""Session fixtures that take long to set up; pytest-xdist runs the files that use one in the same process."""

gc.disable()  # until all modules are imported


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of a file into a group of their own, and those of all files with a fixture of SHARED into one."""
    groups: dict[Path, str] = {}
    for item in items:
        for name in SHARED:
            if name in getattr(item, "fixturenames", ()):
                groups[item.path] = name
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups.get(item.path, item.nodeid.partition("::")[0])))


def pytest_runtest_setup() -> None:
    """Skip a test that begins after TESTS_UNTIL, in seconds since 1970, which .ci/run sets."""
    if time.time() > float(os.environ.get("TESTS_UNTIL", "inf")):
        pytest.skip("the time for all checks is over: run `make test-rest` on a faster machine")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A Ray cluster with two CPUs, which this process has joined; tests that need another one leave it meanwhile."""
    from tests.pipeline.run.on_ray.jobs import cluster_of

    with cluster_of(head_cpus=2) as cluster:
        yield cluster


@pytest.fixture(scope="session", autouse=True)
def modules_are_no_garbage() -> Iterator[None]:
    """Leave the objects of all imported modules out of collections of garbage, each of which would take 0.2 s."""
    gc.collect()
    gc.freeze()
    gc.enable()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def autograd_before_compilers() -> None:
    """Start autograd before torch.compile registers its pseudo-devices.

    Otherwise autograd starts a thread for each of them, and tests that fork processes hang.
    """
    torch.ones(1, requires_grad=True).backward()


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the cached indexes of tars out of the user's cache folder."""
    from trainer.data import loader

    folder = str(tmp_path_factory.mktemp("index"))
    with replaced(loader, "default_folder", lambda: folder):
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


@pytest.fixture(scope="session")
def chromium() -> Iterator[str]:
    """The address of a Chromium, which all tests of this process share."""
    from tests.browser import started_chromium

    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with started_chromium() as address:
        yield address


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """Chromium. Each file connects by itself: a connection holds the event loop, which tests of other files need."""
    from tests.browser import connected

    with connected(chromium) as running:
        yield running
