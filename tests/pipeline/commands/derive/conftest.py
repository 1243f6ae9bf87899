"""Jobs and commands run in the process of the test, which may have patched what a worker calls."""

from collections.abc import Iterator

import pytest

from tests.pipeline.here import running_here


@pytest.fixture(autouse=True, scope="module")
def one_process() -> Iterator[None]:
    with running_here():
        yield
