"""The outputs that the checks of a process share."""

from collections.abc import Iterator

import pytest

from tests.e2e.outputs import Outputs
from tests.e2e.world import input_rows, serving, write_input


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outputs]:
    """The outputs of all commands, each made at its first use; copy one to change it."""
    with serving() as web:
        yield Outputs(tmp_path_factory.mktemp("outputs"), web, write_input(input_rows()))
