"""The web server that the tests of a file share."""

from collections.abc import Iterator

import pytest

from tests.pipeline.stages.download.server import TinyWeb


@pytest.fixture(scope="module")
def web() -> Iterator[TinyWeb]:
    """A server on 127.0.0.1 with images and errors."""
    server = TinyWeb()
    yield server
    server.close()
